from eventonce.cli import main

main()
