# Fails unless tables.lua is what dump_tables.lua prints: cmake -DMOEBENCH= -DFOLDER= -P this file.
execute_process(COMMAND ${MOEBENCH} run ${FOLDER}/dump_tables.lua --trust OUTPUT_VARIABLE printed
                COMMAND_ERROR_IS_FATAL ANY)
file(READ ${FOLDER}/tables.lua kept)
if(NOT printed STREQUAL kept)
  message(FATAL_ERROR "tests/lua/tables.lua is not what the engine says now; make it anew with:\n"
                      "${MOEBENCH} run ${FOLDER}/dump_tables.lua --trust > ${FOLDER}/tables.lua")
endif()
