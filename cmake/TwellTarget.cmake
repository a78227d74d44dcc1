# What every target of this project is compiled with.
find_program(TWELL_CCACHE ccache)
if(TWELL_CCACHE)
  # The sloppiness is what ccache asks for before it caches units that use a precompiled header; the
  # other two, and the prefix map below, let one checkout profit from another.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TWELL_CCACHE})
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)
# Linked by flag and not by path: PyTorch brings a libgomp of its own, a process must have one only,
# and a path to the compiler's would compete with it.
set_target_properties(OpenMP::OpenMP_CXX PROPERTIES INTERFACE_LINK_LIBRARIES ""
                                                    INTERFACE_LINK_OPTIONS "${OpenMP_CXX_FLAGS}")

add_library(twell_flags INTERFACE)
target_compile_features(twell_flags INTERFACE cxx_std_20)
# No contraction: where a kernel wants a fused multiply-add it says so, and the same source gives
# the same bits at every optimisation level.
target_compile_options(twell_flags INTERFACE -Wall -Wextra -ffp-contract=off)
# __FILE__ without the checkout's place: merged sources have absolute paths.
target_compile_options(twell_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(TWELL_WERROR)
  target_compile_options(twell_flags INTERFACE -Werror)
endif()
if(TWELL_SANITIZE)
  target_compile_options(twell_flags INTERFACE -fsanitize=${TWELL_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(twell_flags INTERFACE -fsanitize=${TWELL_SANITIZE})
  # g++ says itself that this warning is wrong more often under sanitizers: it meets libstdc++'s regex.
  target_compile_options(twell_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

# twell_quick_to_compile(TARGET): of a target in which little time is spent. Under sanitizers two fifths of the time
# that g++ takes for it are optimisation.
function(twell_quick_to_compile TARGET)
  if(TWELL_SANITIZE)
    target_compile_options(${TARGET} PRIVATE -O0)
  endif()
endfunction()

# twell_quick_test(TARGET): a test that is built as Release takes twice as long to compile at -O3 as at -O1. Not -O0
# under sanitizers, where an emulated GPU or AMX runs for minutes.
function(twell_quick_test TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Most of the time of a source goes into headers and what they instantiate; those of one folder are
# therefore compiled several as one, in batches of nearly the same size. Names in unnamed namespaces must
# differ within a room. Called when the target has its sources; those with options of their own stay alone.
set(TWELL_MERGE_SOURCES 12 CACHE STRING "At most how many sources of a target are compiled as one; 0: each alone")
function(twell_merge_sources TARGET)
  if(TWELL_MERGE_SOURCES)
    get_target_property(sources ${TARGET} SOURCES)
    list(LENGTH sources count)
    math(EXPR batches "(${count} + ${TWELL_MERGE_SOURCES} - 1) / ${TWELL_MERGE_SOURCES}")
    math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
    # It takes a merged source for a header, where an unnamed namespace would be a mistake.
    target_compile_options(${TARGET} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

include(TorchPch)
