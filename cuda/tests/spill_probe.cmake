# Fails unless COMPILER with FLAGS refuses spill_probe.cu for its use of local memory.
execute_process(
  COMMAND ${COMPILER} ${FLAGS} -cubin -o ${OUTPUT} ${CMAKE_CURRENT_LIST_DIR}/spill_probe.cu
  RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(status EQUAL 0)
  message(FATAL_ERROR "a kernel that uses local memory was compiled; flags: ${FLAGS}\n${said}")
elseif(NOT said MATCHES "Local memory used")
  message(FATAL_ERROR "compiling the probe failed, but not for its local memory:\n${said}")
endif()
