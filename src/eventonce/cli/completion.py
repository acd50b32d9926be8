"""`eventonce completion`: completion for the shell."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes eventonce's commands and options in your shell.

    \b
      eval "$(eventonce completion bash)"              in ~/.bashrc
      eval "$(eventonce completion zsh)"               in ~/.zshrc
      eventonce completion fish | source               in config.fish
    """
    kind = get_completion_class(shell)
    root = context.find_root()
    if kind is not None:
        click.echo(kind(root.command, {}, "eventonce", "_EVENTONCE_COMPLETE").source())
