#!/usr/bin/env bash
# Installs what the build and the tests need and the machine lacks. Asks nothing; when nothing is missing it returns at
# once and needs no network.
#
#   tools/setup.sh          compiler, CMake, Ninja, libraries
#   tools/setup.sh fuzz     these, and clang-19 + llvm-19 for the fuzz targets
#   tools/setup.sh format   these, and clang-format
#
# Debian 12 and Ubuntu 24.04: apt, as root or through sudo. Elsewhere: prints the list of needs, and fails only when one
# of them is truly missing.
set -euo pipefail

os_release=/etc/os-release  # tools/setup_test.sh sources this file and points it elsewhere

common_packages=(
  g++ make cmake ninja-build ccache mold
  libcli11-dev libxxhash-dev libgtest-dev libpcre2-dev libutf8proc-dev
  python3 python3-venv
)
fuzz_packages=(clang-19 llvm-19)
format_packages=(clang-format)

# The packages of this distribution, one a line; nothing for a distribution that is not known.
packages_for() {
  local id version
  id=$(. "$os_release" 2>/dev/null && echo "${ID:-}") || id=
  version=$(. "$os_release" 2>/dev/null && echo "${VERSION_ID:-}") || version=
  local boost
  case "$id:$version" in
    debian:12) boost=1.81 ;;
    ubuntu:24.04) boost=1.83 ;;
    *) return 0 ;;
  esac
  printf '%s\n' "${common_packages[@]}" "libboost$boost-dev" "libboost-json$boost-dev"
  if [ "$1" = fuzz ]; then printf '%s\n' "${fuzz_packages[@]}"; fi
  if [ "$1" = format ]; then printf '%s\n' "${format_packages[@]}"; fi
}

# Of the given packages, those that are not installed.
not_installed() {
  local installed package
  installed=$(dpkg-query -W -f '${Status}:${Package}\n' "$@" 2>/dev/null || true)  # fails when it does not know one
  installed=" $(sed -n 's/^install ok installed://p' <<<"$installed" | tr '\n' ' ')"
  for package in "$@"; do
    case "$installed" in *" $package "*) ;; *) echo "$package" ;; esac
  done
}

user_id() { id -u; }

# The words that put a command under root, or failure. Never asks for a password.
as_root() {
  if [ "$(user_id)" = 0 ]; then
    echo env
  elif command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
    echo "sudo -n env"
  else
    return 1
  fi
}

install_packages() {
  local root
  root=$(as_root) || {
    echo "setup: not root, and sudo is absent or asks for a password; to install: sudo apt-get install $*" >&2
    return 1
  }
  local -a apt=($root DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -y -q
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 -o Acquire::http::Timeout=30)
  echo "setup: installing $*" >&2
  "${apt[@]}" update >&2 || echo "setup: apt-get update failed; trying with the package lists at hand" >&2
  "${apt[@]}" install --no-install-recommends "$@" </dev/null >&2
}

# Does a program of this name run? Several names: any of them.
have_program() {
  local name
  for name in "$@"; do
    if command -v "$name" >/dev/null 2>&1; then return 0; fi
  done
  return 1
}

# Is the preprocessor condition true for the C++ compiler?
have_header() {
  local compiler
  for compiler in ${CXX:-} g++ c++ clang++; do
    if command -v "$compiler" >/dev/null 2>&1; then
      "$compiler" -std=c++20 -E -x c++ - >/dev/null 2>&1 <<<"$1"
      return
    fi
  done
  return 1
}
header_condition() { printf '#if !__has_include(<%s>)\n#error\n#endif' "$1"; }

# What the build cannot do without, whatever the distribution calls it: one line for each need that is not met.
unmet_needs() {
  have_program g++ c++ clang++ || echo "a C++20 compiler (GCC 12 or newer)"
  have_program make gmake || echo "GNU make"
  have_program cmake || echo "CMake 3.22 or newer"
  have_program ninja || echo "Ninja"
  local boost_version=$'#include <boost/version.hpp>\n#if BOOST_VERSION < 108100\n#error\n#endif'
  { have_header "$boost_version" && have_header "$(header_condition boost/json.hpp)" &&
    have_header "$(header_condition boost/beast/http.hpp)"; } ||
    echo "Boost 1.81 or newer with Boost.Asio, Boost.Beast and Boost.JSON (headers, and JSON's static library)"
  have_header "$(header_condition CLI/CLI.hpp)" || echo "CLI11"
  have_header "$(header_condition gtest/gtest.h)" || echo "GoogleTest"
  have_header "$(header_condition pcre2.h)" || echo "PCRE2 (8 bit, static library)"
  have_header "$(header_condition utf8proc.h)" || echo "utf8proc (static library)"
  have_header "$(header_condition xxhash.h)" || echo "xxHash 0.8 (static library)"
  if [ "$1" = fuzz ]; then
    have_program clang++-19 || echo "clang 19 with libFuzzer (clang++-19)"
    have_program llvm-cov-19 || echo "LLVM 19 tools (llvm-profdata-19, llvm-cov-19)"
  fi
  if [ "$1" = format ]; then have_program clang-format || echo "clang-format"; fi
}

main() {
  local what=${1:-build}
  case "$what" in
    build | fuzz | format) ;;
    *)
      echo "usage: tools/setup.sh [fuzz | format]" >&2
      return 2
      ;;
  esac

  local -a packages missing=()
  mapfile -t packages < <(packages_for "$what")
  local by_apt=no
  if [ ${#packages[@]} -gt 0 ] && have_program dpkg-query && have_program apt-get; then
    by_apt=yes
    mapfile -t missing < <(not_installed "${packages[@]}")
    if [ ${#missing[@]} -eq 0 ]; then return 0; fi
    if install_packages "${missing[@]}"; then return 0; fi
  fi

  # Nothing could be installed: what is there may still be enough (own builds, other package names).
  local unmet
  unmet=$(unmet_needs "$what")
  if [ -z "$unmet" ]; then
    if [ $by_apt = yes ]; then
      echo "setup: going on without ${missing[*]}" >&2
    fi
    return 0
  fi
  {
    if [ $by_apt = no ]; then
      echo "setup: packages are installed on Debian 12 and Ubuntu 24.04 only. weir needs:"
      echo "  a C++20 compiler (GCC 12 or newer), GNU make, CMake 3.22 or newer, Ninja, Boost 1.81 or newer with"
      echo "  Boost.JSON, CLI11, GoogleTest, PCRE2, utf8proc, xxHash (as static libraries); it likes ccache and mold"
    fi
    echo "setup: missing:"
    sed 's/^/  /' <<<"$unmet"
  } >&2
  return 1
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then main "$@"; fi
