# Everything the other scripts need on the machine.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$LIB/packages.sh"
source "$LIB/python.sh"
source "$LIB/build.sh"

# setup [GROUP...]: groups as in packages.sh, "build" always.
setup() {
  ensure_packages build "$@"
  ensure_python "$@"
}
