#!/usr/bin/env bash
# tools/setup.sh against stand-ins for apt-get, dpkg-query, sudo and id. Installs nothing, needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
real_path=$PATH
failures=0

# A world: operating system, user id, how sudo answers (absent, password, works), how apt-get answers (works, fails),
# packages that are installed ("all" or a list), programs and headers present (yes or no).
world() {
  local id=$1 version=$2 uid=$3 sudo=$4 apt=$5 installed=$6 present=$7
  rm -rf "$work/bin" "$work/log" && mkdir -p "$work/bin" && : >"$work/log"
  printf 'ID=%s\nVERSION_ID="%s"\n' "$id" "$version" >"$work/os-release"
  if [ "$apt" != absent ]; then
    cat >"$work/bin/apt-get" <<STUB
#!/bin/bash
echo "apt-get \$*" >>"$work/log"
[ $apt = works ]
STUB
    cat >"$work/bin/dpkg-query" <<STUB
#!/bin/bash
shift 3
status=0
for package in "\$@"; do
  case "$installed" in
    all | *" \$package "*) echo "install ok installed:\$package" ;;
    *) status=1 ;;  # as the real one does for a package that it does not know
  esac
done
exit \$status
STUB
  fi
  if [ "$sudo" != absent ]; then
    cat >"$work/bin/sudo" <<STUB
#!/bin/bash
echo "sudo \$*" >>"$work/log"
[ $sudo = works ] || exit 1
[ "\$1" = -n ] && shift
"\$@"
STUB
  fi
  local tool
  for tool in bash env sed tr id; do ln -s "$(PATH=$real_path type -P "$tool")" "$work/bin/$tool"; done
  if [ "$present" = yes ]; then
    for tool in g++ make cmake ninja clang++-19 llvm-cov-19; do printf '#!/bin/bash\nexit 0\n' >"$work/bin/$tool"; done
  fi
  chmod +x "$work"/bin/* 2>/dev/null || true
  uid_now=$uid
}

# Runs setup in the world; leaves its exit status in `status`, its messages in $work/err.
run_setup() {
  status=0
  PATH="$work/bin" UID_NOW=$uid_now OS_RELEASE="$work/os-release" "$work/bin/bash" -c '
    source tools/setup.sh
    os_release=$OS_RELEASE
    user_id() { echo "$UID_NOW"; }
    main "$@"' setup "$@" >"$work/out" 2>"$work/err" || status=$?
}

expect() {
  local sentence=$1
  shift
  if "$@"; then
    echo "ok    $sentence"
  else
    echo "FAILED $sentence (status $status)"
    sed 's/^/    /' "$work/err" "$work/log"
    failures=$((failures + 1))
  fi
}
calls() { grep -qe "$1" "$work/log"; }
says() { grep -qe "$1" "$work/err"; }
silent() { [ ! -s "$work/out" ] && [ ! -s "$work/err" ] && [ ! -s "$work/log" ]; }
ends() { [ "$status" = "$1" ]; }

world debian 12 0 absent works all yes && run_setup
expect "with everything installed it says nothing and calls nothing" silent
expect "and succeeds" ends 0

world debian 12 0 absent works " g++ make " no && run_setup
expect "as root it installs by apt" calls '^apt-get .*install .*cmake.*ninja-build'
expect "after fetching the lists" calls '^apt-get .*update'
expect "Debian 12 gets Boost 1.81" calls 'libboost-json1.81-dev'
expect "what is installed is not installed again" eval '! calls "install .* g++ "'
expect "and succeeds" ends 0

world ubuntu 24.04 1000 works works "" no && run_setup
expect "Ubuntu 24.04 gets Boost 1.83" calls '^apt-get .*libboost-json1.83-dev'
expect "through sudo that asks nothing" calls '^sudo -n env DEBIAN_FRONTEND=noninteractive.*apt-get'
expect "and succeeds" ends 0

world debian 12 1000 password works "" no && run_setup
expect "sudo that wants a password is not asked" eval '! calls "^apt-get"'
expect "the command to type is printed" says 'sudo apt-get install .*g++'
expect "and it fails, because needs are missing" ends 1

world debian 12 1000 absent works "" yes && run_setup
expect "without root and sudo, but with all needs met by other means, it succeeds" ends 0

world debian 12 0 absent fails "" no && run_setup
expect "a failing apt-get is reported by what is missing" says 'a C++20 compiler'
expect "and fails" ends 1

world debian 12 0 absent fails " g++ make cmake ninja-build " yes && run_setup
expect "a failing apt-get is no matter when all needs are met" ends 0
expect "but the packages are named" says 'going on without .*ccache'

world fedora 42 0 absent absent "" no && run_setup
expect "elsewhere the list of needs is printed" says 'Boost 1.81 or newer'
expect "with what is missing" says '^  GoogleTest'
expect "and it fails" ends 1

world fedora 42 0 absent absent "" yes && run_setup
expect "elsewhere with all needs met it says nothing" silent
expect "and succeeds" ends 0

world ubuntu 22.04 0 works works "" no && run_setup
expect "a distribution without a new enough Boost gets the list, not half the packages" eval '! calls "^apt-get"'

world debian 12 0 absent works " g++ make cmake ninja-build " no && run_setup fuzz
expect "fuzz also installs clang-19 and llvm-19" calls 'install .*clang-19 llvm-19'
world debian 12 0 absent works "" no && run_setup
expect "which a plain set-up does not" eval '! calls clang-19'

world debian 12 0 absent works all yes && run_setup format
expect "format with everything installed says nothing" silent
world debian 12 0 absent works " g++ " no && run_setup format
expect "and installs clang-format when it is missing" calls 'install .*clang-format'
world debian 12 0 absent works all yes && run_setup nonsense
expect "an unknown word is refused" ends 2

if [ $failures -gt 0 ]; then
  echo "$failures failed"
  exit 1
fi
