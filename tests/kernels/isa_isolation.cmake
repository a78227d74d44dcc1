# No object of a CPU tier may define a weak symbol: the linker could give an inline function that was compiled with
# AVX-512 to code that runs on any CPU.
#   cmake -DNM=nm -DOBJECTS=a.o;b.o -P isa_isolation.cmake
set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(object MATCHES "kernels/cpu/")
    execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols
                    COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
    if(weak)
      message(FATAL_ERROR "${object} defines weak symbols:\n${weak}")
    endif()
    math(EXPR checked "${checked} + 1")
  endif()
endforeach()
if(checked LESS 1)
  message(FATAL_ERROR "expected the portable tier's object at least, found none")
endif()
message(STATUS "${checked} objects define no weak symbol")
