#!/usr/bin/env bash
# servers.sh PYTHON [NAME...]: installs servers and checkers, into .servers or with apt where that is allowed.
# Without names, all that the tests talk to. What cannot be installed is reported, and its tests are skipped (with
# CI=true they fail).
set -uo pipefail
cd "$(dirname "$0")/.."
python="$1"
shift
mkdir -p .servers/bin
export PATH="$PWD/.servers/bin:$PATH"

report() {
    echo "servers: $*" >&2
}

with_apt() {  # PROGRAM PACKAGE [SUITE]: by root, or by whoever may become root without being asked
    command -v "$1" >/dev/null || ls /usr/lib/postgresql/*/bin/"$1" >/dev/null 2>&1 && return
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    if ! command -v apt-get >/dev/null || ! "${root[@]}" true 2>/dev/null; then
        report "$1 is missing; install $2 to run its tests"
        return
    fi
    echo "Installing $2 with apt ..."
    local install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2")
    "${install[@]}" >/dev/null 2>&1 || { "${root[@]}" apt-get update -qq; "${install[@]}" >/dev/null 2>&1; } ||
        { [ -z "${3:-}" ] || add_suite "$3"; "${install[@]}" >/dev/null; } ||
        report "$2 could not be installed; its tests are skipped"
}

add_suite() {  # SUITE: of Debian, such as backports; from the mirror that its release itself comes from
    local release mirror
    release="$(. /etc/os-release && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}")"
    mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" | head -1)"
    [ -n "$release" ] && [ -n "$mirror" ] || return
    echo "deb $mirror $release-$1 main" | "${root[@]}" tee "/etc/apt/sources.list.d/$release-$1.list" >/dev/null
    "${root[@]}" apt-get update -qq
}

with_npm() {  # PROGRAM PACKAGE VERSION [FILE]
    [ -x ".servers/bin/$1" ] && return
    if ! command -v npm >/dev/null; then
        report "npm is missing; install Node.js to run the tests on $1"
        return
    fi
    echo "Installing $1 into .servers ..."
    npm install --silent --no-save --no-audit --no-fund --prefix ".servers/$1" "$2@$3" >/dev/null &&
        ln -sf "../$1/node_modules/$2/${4:-$1}" ".servers/bin/$1" ||
        report "$1 could not be installed; its tests are skipped"
}

with_pip() {  # PROGRAM REQUIREMENT...: in an environment of its own
    "$python" tools/install.py --into ".servers/$1" "${@:2}" && ln -sf "../$1/bin/$1" ".servers/bin/$1" ||
        report "$1 could not be installed; its tests are skipped"
}

platform() {
    case "$(uname -s)-$(uname -m)" in
        Linux-x86_64) echo linux-x64 ;;
        Linux-aarch64) echo linux-arm64 ;;
        Darwin-arm64) echo darwin-arm64 ;;
        *) echo darwin-x64 ;;
    esac
}

[ $# -gt 0 ] || set -- redis valkey postgresql dynoxide kinesalite ministack-with-sam cfn-lint pyright terraform
for name in "$@"; do
    case "$name" in
        redis) with_apt redis-server redis-server ;;
        valkey) with_apt valkey-server valkey-server backports ;;
        postgresql) with_apt initdb postgresql ;;
        dynoxide) with_npm dynoxide "@dynoxide/$(platform)" 1.2.1 ;;
        kinesalite) with_npm kinesalite kinesalite 3.3.3 cli.js ;;
        pyright) with_npm pyright pyright 1.1.414 index.js ;;
        ministack) with_pip ministack ministack==1.5.33 ;;
        ministack-with-sam) with_pip ministack ministack==1.5.33 aws-sam-translator ;;
        cfn-lint) with_pip cfn-lint 'cfn-lint>=1.20' ;;
        pip-audit) with_pip pip-audit 'pip-audit>=2.7' ;;
        terraform)
            command -v terraform >/dev/null ||
                report "terraform is missing, and no package index has it; install it to check the templates for it" ;;
        *) report "there is no server '$name'" ; exit 2 ;;
    esac
done
exit 0
