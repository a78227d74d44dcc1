# The packages of headers in build/gpu-bundle (scripts/gpu_check bundle), where find_package finds this file
# under each one's name.
foreach(target CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json)
  if(NOT TARGET ${target})
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../../../include)
    target_compile_definitions(${target} INTERFACE FMT_HEADER_ONLY=1)
  endif()
endforeach()
