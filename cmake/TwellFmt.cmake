# The system's fmt for sources that include LibTorch as well.
#
# PyTorch's include folder holds an fmt of another version, without its library. Used header-only, as it
# was, it put 100 kB of the same machine code into every unit: a fifth of what the rooms above libtwell
# compiled. Before that folder there is now one in which fmt is the system's, whose library has that code.
find_package(fmt REQUIRED)
get_target_property(_fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
set(_include_first ${PROJECT_BINARY_DIR}/include-first)
file(MAKE_DIRECTORY ${_include_first})
file(CREATE_LINK ${_fmt_include}/fmt ${_include_first}/fmt SYMBOLIC)
get_target_property(_torch_include LibTorch::cpu INTERFACE_INCLUDE_DIRECTORIES)
set_property(TARGET LibTorch::cpu PROPERTY INTERFACE_INCLUDE_DIRECTORIES ${_include_first} ${_torch_include})
