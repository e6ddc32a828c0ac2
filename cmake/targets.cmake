# One static library per folder of src/ (and per op), found by globbing: a new file needs no edit here.
#   *_cpu.cpp    compiled once per instruction set, with WEIR_ISA naming the namespace (*_int8_cpu.cpp: see options.cmake)
#   *_test.cpp   one GoogleTest program each
#   *_bench.cpp  one program each, built by the target `benches`
#   *_fuzz.cpp   one libFuzzer program each, with WEIR_FUZZ
add_custom_target(benches)
enable_testing()

function(weir_folder name folder)
  file(GLOB all CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER all EXCLUDE REGEX "_cuda_(test|bench)\\.cpp$")  # cuda.cmake
  set(plain ${all})
  list(FILTER plain EXCLUDE REGEX "_(test|bench|cpu|fuzz|main)\\.cpp$")
  set(cpu ${all})
  list(FILTER cpu INCLUDE REGEX "_cpu\\.cpp$")
  set(int8 ${cpu})
  list(FILTER cpu EXCLUDE REGEX "_int8_cpu\\.cpp$")
  list(FILTER int8 INCLUDE REGEX "_int8_cpu\\.cpp$")
  set(objects "")
  foreach(isa ${WEIR_ISAS} ${WEIR_INT8_ISAS})
    set(sources "")
    if(isa IN_LIST WEIR_ISAS)
      list(APPEND sources ${cpu})
    endif()
    if(isa IN_LIST WEIR_INT8_ISAS)
      list(APPEND sources ${int8})
    endif()
    if(sources AND NOT TARGET ${name}_${isa})
      add_library(${name}_${isa} OBJECT ${sources})
      target_include_directories(${name}_${isa} PRIVATE ${CMAKE_SOURCE_DIR}/src)
      target_compile_options(${name}_${isa} PRIVATE ${WEIR_FLAGS_${isa}})
      target_compile_definitions(${name}_${isa} PRIVATE WEIR_ISA=${isa} WEIR_ISA_${isa}=1 ${WEIR_DEFINITIONS_${isa}})
      list(APPEND objects $<TARGET_OBJECTS:${name}_${isa}>)
    endif()
  endforeach()
  if(plain OR objects)
    add_library(${name} STATIC ${plain} ${objects})
    target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC ${ARGN})
    set(own ${name})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(${name} INTERFACE ${ARGN})
  endif()
  foreach(file ${all})
    get_filename_component(program ${file} NAME_WE)
    if(file MATCHES "_test\\.cpp$")
      weir_test(${program} ${file} ${name})
    elseif(file MATCHES "_bench\\.cpp$")
      add_executable(${program} EXCLUDE_FROM_ALL ${file})
      target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR})  # "tests/support/..."
      target_link_libraries(${program} PRIVATE ${name})
      add_dependencies(benches ${program})
    elseif(file MATCHES "_fuzz\\.cpp$" AND WEIR_FUZZ)
      add_executable(${program} ${file})
      target_compile_options(${program} PRIVATE -fsanitize=fuzzer)
      target_link_options(${program} PRIVATE -fsanitize=fuzzer)
      target_link_libraries(${program} PRIVATE ${name})
    endif()
  endforeach()
endfunction()

function(weir_test program file)
  add_executable(${program} ${file})
  target_link_libraries(${program} PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
  target_include_directories(${program} PRIVATE ${CMAKE_SOURCE_DIR})  # "tests/support/..."
  target_compile_definitions(${program} PRIVATE WEIR_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures"
                             WEIR_FIXTURE_CACHE="${CMAKE_BINARY_DIR}/fixtures"
                                                WEIR_BINARY="${CMAKE_BINARY_DIR}/weir")
  add_test(NAME ${program} COMMAND ${program})
  set_tests_properties(${program} PROPERTIES TIMEOUT 600)
endfunction()

weir_folder(weir_base src/base Threads::Threads)
weir_folder(weir_formats src/formats weir_base Boost::json)
weir_folder(weir_device src/device weir_base)
weir_folder(weir_text src/text weir_formats weir_pcre2 weir_utf8proc)

# Ops that call another op's kernel say so here; all others stand alone.
set(WEIR_OP_DEPS_moe weir_op_linear weir_op_activation weir_op_norm)
set(WEIR_OP_DEPS_norm weir_op_activation)
set(WEIR_OP_DEPS_attn_residual weir_op_activation weir_op_norm)
set(WEIR_OP_DEPS_mla weir_op_attention weir_op_linear)
set(WEIR_OP_DEPS_indexer weir_op_attention)
set(WEIR_OP_DEPS_sparse_attention weir_op_attention)
file(GLOB op_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE ${CMAKE_SOURCE_DIR}/src/ops ${CMAKE_SOURCE_DIR}/src/ops/*)
set(op_libraries "")
foreach(op ${op_folders})
  if(IS_DIRECTORY ${CMAKE_SOURCE_DIR}/src/ops/${op})
    weir_folder(weir_op_${op} src/ops/${op} weir_formats weir_device ${WEIR_OP_DEPS_${op}})
    list(APPEND op_libraries weir_op_${op})
  endif()
endforeach()

weir_folder(weir_state src/state weir_device weir_xxhash)
weir_folder(weir_models src/models weir_state ${op_libraries})
include(${CMAKE_SOURCE_DIR}/cmake/builtin_model.cmake)
weir_folder(weir_engine src/engine weir_models weir_text)
weir_folder(weir_server src/server weir_engine)

# The web page, put together from its sources (web_page.h).
set(WEIR_PAGE ${CMAKE_BINARY_DIR}/web_page)
file(GLOB page_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/server/web/*)
add_custom_command(
  OUTPUT ${WEIR_PAGE}/web_page.cpp
  BYPRODUCTS ${WEIR_PAGE}/web_page.html ${WEIR_PAGE}/web_page.csp
  COMMAND ${CMAKE_COMMAND} -D SOURCES=${CMAKE_SOURCE_DIR}/src/server/web -D OUTPUT=${WEIR_PAGE}
          -P ${CMAKE_SOURCE_DIR}/cmake/web_page.cmake
  DEPENDS ${page_sources} ${CMAKE_SOURCE_DIR}/cmake/web_page.cmake
  VERBATIM)
target_sources(weir_server PRIVATE ${WEIR_PAGE}/web_page.cpp)

weir_folder(weir_cli src/cli weir_server CLI11::CLI11)
target_compile_definitions(weir_cli PRIVATE WEIR_VERSION="${PROJECT_VERSION}")

if(EXISTS ${CMAKE_SOURCE_DIR}/src/cli/weir_main.cpp)
  add_executable(weir src/cli/weir_main.cpp)
  target_link_libraries(weir PRIVATE weir_cli)
endif()

# Tests and benches that cross folders.
file(GLOB cross_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*_test.cpp)
list(FILTER cross_tests EXCLUDE REGEX "_cuda_test\\.cpp$")
foreach(file ${cross_tests})
  get_filename_component(program ${file} NAME_WE)
  weir_test(${program} ${file} weir_cli)
  set_tests_properties(${program} PROPERTIES PROCESSORS 2)  # engines with two threads: nothing beside them
  if(program MATCHES "equality")
    set_tests_properties(${program} PROPERTIES TIMEOUT 36000)  # with WEIR_EQUALITY=full
  endif()
  if(TARGET weir)
    add_dependencies(${program} weir)
  endif()
endforeach()
# Servers whose answers are given, for clients in other languages.
add_executable(replay_server tests/replay_server_main.cpp)
target_link_libraries(replay_server PRIVATE weir_server)
target_include_directories(replay_server PRIVATE ${CMAKE_SOURCE_DIR})
file(GLOB cross_benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/*_bench.cpp)
list(FILTER cross_benches EXCLUDE REGEX "_cuda_bench\\.cpp$")
foreach(file ${cross_benches})
  get_filename_component(program ${file} NAME_WE)
  add_executable(${program} EXCLUDE_FROM_ALL ${file})
  target_link_libraries(${program} PRIVATE weir_cli)
  add_dependencies(benches ${program})
endforeach()
add_test(NAME isa_symbols_test COMMAND ${CMAKE_SOURCE_DIR}/cmake/isa_symbols.sh ${CMAKE_BINARY_DIR} ${CMAKE_NM})

# Tests of the tools. Without python3 or numpy CTest says "Skipped" and `ctest -V` why.
add_test(NAME setup_test COMMAND ${CMAKE_SOURCE_DIR}/tools/setup_test.sh)
find_program(PYTHON3 python3)
if(PYTHON3)
  add_test(NAME make_model_test COMMAND ${PYTHON3} ${CMAKE_SOURCE_DIR}/tools/make_model_test.py -v)
else()
  add_test(NAME make_model_test COMMAND ${CMAKE_COMMAND} -E echo "OK (skipped=all): python3 is not installed")
endif()
set_tests_properties(make_model_test PROPERTIES SKIP_REGULAR_EXPRESSION "OK \\(skipped=")

# The official clients of the server's dialects, unchanged; 77: their packages are not installed, and `ctest -V` says so.
if(PYTHON3)
  add_test(NAME server_clients_test COMMAND ${PYTHON3} ${CMAKE_SOURCE_DIR}/tests/server_clients_test.py
           $<TARGET_FILE:replay_server> $<TARGET_FILE:weir>)
  set_tests_properties(server_clients_test PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
  add_test(NAME serve_signals_test COMMAND ${PYTHON3} ${CMAKE_SOURCE_DIR}/tests/serve_signals_test.py $<TARGET_FILE:weir>)
  set_tests_properties(serve_signals_test PROPERTIES TIMEOUT 600)
  add_test(NAME dialect_types_test COMMAND ${PYTHON3} ${CMAKE_SOURCE_DIR}/tests/dialect_types_test.py
           $<TARGET_FILE:anthropic_test> $<TARGET_FILE:responses_test>)
  set_tests_properties(dialect_types_test PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
endif()

# The web page in headless Chromium, against a server of scripted answers. Without chromium, chromedriver or selenium
# CTest says "Skipped" and `ctest -V` why.
if(PYTHON3)
  add_test(NAME web_page_browser_test COMMAND ${PYTHON3} ${CMAKE_SOURCE_DIR}/tests/web_page_test.py --page ${WEIR_PAGE})
else()
  add_test(NAME web_page_browser_test COMMAND sh -c "echo 'skipped: python3 is not installed'; exit 77")
endif()
set_tests_properties(web_page_browser_test PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)

if(PYTHON3)
  add_test(NAME tiny_k3_goldens COMMAND ${PYTHON3} ${CMAKE_SOURCE_DIR}/tools/tiny_k3/check_goldens.py)
  set_tests_properties(tiny_k3_goldens PROPERTIES SKIP_RETURN_CODE 77)  # without torch
endif()
