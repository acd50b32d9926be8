#!/usr/bin/env bash
# Installs the servers and checkers that the tests and benchmarks talk to: into .servers, or with apt where that is allowed.
# What cannot be installed is said, and its tests are skipped (with CI=true they fail).
set -uo pipefail
cd "$(dirname "$0")/.."
python="$1"
mkdir -p .servers/bin
export PATH="$PWD/.servers/bin:$PATH"

with_apt() {  # PROGRAM PACKAGE: by root, or by whoever may become root without being asked
    command -v "$1" >/dev/null || ls /usr/lib/postgresql/*/bin/"$1" >/dev/null 2>&1 && return
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    if ! command -v apt-get >/dev/null || ! "${root[@]}" true 2>/dev/null; then
        echo "servers: $1 is missing; install $2 to run its tests" >&2
        return
    fi
    echo "servers: installing $2"
    local install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2")
    "${install[@]}" >/dev/null 2>&1 || { "${root[@]}" apt-get update -qq; "${install[@]}" >/dev/null; } ||
        echo "servers: $2 could not be installed; its tests are skipped" >&2
}

with_npm() {  # PROGRAM PACKAGE VERSION [FILE]
    [ -x ".servers/bin/$1" ] && return
    if ! command -v npm >/dev/null; then
        echo "servers: npm is missing; install Node.js to run the tests on $1" >&2
        return
    fi
    echo "servers: installing $1"
    npm install --silent --no-save --no-audit --no-fund --prefix ".servers/$1" "$2@$3" >/dev/null &&
        ln -sf "../$1/node_modules/$2/${4:-$1}" ".servers/bin/$1" ||
        echo "servers: $1 could not be installed; its tests are skipped" >&2
}

with_pip() {  # PROGRAM REQUIREMENT...: in an environment of its own
    [ -x ".servers/bin/$1" ] && [ "$(cat ".servers/$1/wanted" 2>/dev/null)" = "$*" ] && return
    echo "servers: installing $1"
    "$python" -m venv ".servers/$1" &&
        ".servers/$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}" &&
        ln -sf "../$1/bin/$1" ".servers/bin/$1" && echo "$*" >".servers/$1/wanted" ||
        echo "servers: $1 could not be installed; its tests are skipped" >&2
}

case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) platform=linux-x64 ;;
    Linux-aarch64) platform=linux-arm64 ;;
    Darwin-arm64) platform=darwin-arm64 ;;
    *) platform=darwin-x64 ;;
esac
with_apt redis-server redis-server
with_apt initdb postgresql
with_npm dynoxide "@dynoxide/$platform" 1.2.1
with_npm kinesalite kinesalite 3.3.3 cli.js
with_pip ministack ministack==1.5.33 aws-sam-translator
with_pip cfn-lint 'cfn-lint>=1.20'
with_pip pip-audit 'pip-audit>=2.7'
command -v terraform >/dev/null ||
    echo "servers: terraform is missing, and no package index has it; install it to check the templates for it" >&2
exit 0
