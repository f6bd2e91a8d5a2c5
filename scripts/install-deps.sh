#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing; with sudo when not root. Debian 12 and later.
#
#   scripts/install-deps.sh          what the build, the tests and the programs need
#   scripts/install-deps.sh --dev    also clang, clang-format, clang-tidy, clang's sanitizers, and
#                                    clang 19 where Debian has it: kernels are run under its TSan
set -euo pipefail

packages=(g++ cmake ninja-build libfmt-dev libxxhash-dev catch2 libbenchmark-dev nlohmann-json3-dev
  libcli11-dev libopenblas-dev libpcre2-dev python3 git)
dev=0
for argument in "$@"; do
  case $argument in
    --dev) dev=1 ;;
    *) echo "install-deps.sh: unknown option '$argument'; the only one is --dev" >&2; exit 2 ;;
  esac
done
# llvm: sanitizers name lines by its symbolizer.
((dev)) && packages+=(clang clang-format clang-tidy llvm)

if ! command -v dpkg-query > /dev/null; then
  echo "install-deps.sh: not a Debian system; install by hand: ${packages[*]}" >&2
  exit 0
fi

updated=0
# as_root COMMAND...
as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}
# install_missing PACKAGE...: silent when nothing is missing.
install_missing() {
  local package missing=()
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null) == installed ]] ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  echo "Installing: ${missing[*]}"
  # One source out of reach need not matter: the install says what is really missing.
  ((updated)) || as_root apt-get update -qq || echo "apt-get update failed; going on" >&2
  updated=1
  as_root apt-get install -qq -y --no-install-recommends "${missing[@]}" < /dev/null
}

install_missing "${packages[@]}"
if ((dev)); then
  # The sanitizers' package carries clang's version in its name.
  clang_major=$(clang --version | sed -n 's/.*clang version \([0-9]*\).*/\1/p;q')
  install_missing "libclang-rt-$clang_major-dev"
  # Without it the TSan tests of kernels are skipped.
  if apt-cache show clang-19 &> /dev/null; then
    install_missing clang-19 libclang-rt-19-dev llvm-19
  fi
fi
