# Puts the files of models/tiny-k3 into the program: builtin_model.cpp takes them in as they are (.incbin), each on a page
# of memory as a mapped file would be.
set(folder ${CMAKE_SOURCE_DIR}/models/tiny-k3)
file(GLOB files CONFIGURE_DEPENDS ${folder}/*)
if(NOT files)
  message(FATAL_ERROR "${folder}: the built-in model is not there")
endif()
set(number 0)
set(assembly "")
set(declarations "")
set(entries "")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME)
  set(symbol weir_builtin_${number})
  string(APPEND assembly
         "    \".balign 4096\\n${symbol}:\\n.incbin \\\"${file}\\\"\\n${symbol}_end:\\n\"\n")
  string(APPEND declarations "extern const std::byte ${symbol}[], ${symbol}_end[];\n")
  string(APPEND entries "      {\"builtin:tiny-k3/${name}\", {${symbol}, ${symbol}_end}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/builtin_model.cpp @ONLY CONTENT [=[
// Made by cmake/builtin_model.cmake.
#include "formats/embedded_files.h"
#include "models/builtin.h"

asm(".pushsection .rodata\n"
@assembly@    ".popsection\n");

extern "C" {
@declarations@}

void weir::add_builtin_model() {
  static const EmbeddedFile kFiles[] = {
@entries@  };
  set_embedded_files(kFiles);
}
]=])
set_source_files_properties(${CMAKE_BINARY_DIR}/builtin_model.cpp PROPERTIES OBJECT_DEPENDS "${files}")
target_sources(weir_models PRIVATE ${CMAKE_BINARY_DIR}/builtin_model.cpp)
