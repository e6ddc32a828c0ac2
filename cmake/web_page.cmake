# cmake -D SOURCES=src/server/web -D OUTPUT=FOLDER -P web_page.cmake
#
# Puts the web page together: index.html with the style and the scripts in it. Writes web_page.html, web_page.csp (the
# value of its Content-Security-Policy, by the hashes of what is inside) and web_page.cpp, which holds both.
cmake_minimum_required(VERSION 3.22)

# In the order of what they need: modules become one script, in which imports have nothing left to do.
set(modules dom sse api markdown store answer stats chat transcript settings sidebar timeline engine app)

# As CSP wants hashes: base64, which CMake has no word for. 3 hexadecimal digits are 2 of its characters.
function(csp_hash text result)
  set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hex "${text}")
  string(REGEX MATCHALL "..." groups "${hex}00")  # 33 bytes: the last of 44 characters is padding
  set(base64 "")
  foreach(group IN LISTS groups)
    math(EXPR high "0x${group} >> 6")
    math(EXPR low "0x${group} & 63")
    string(SUBSTRING "${alphabet}" ${high} 1 first)
    string(SUBSTRING "${alphabet}" ${low} 1 second)
    string(APPEND base64 "${first}${second}")
  endforeach()
  string(SUBSTRING "${base64}" 0 43 base64)
  set(${result} "'sha256-${base64}='" PARENT_SCOPE)
endfunction()

set(script "\n(() => {\n\"use strict\";\n")
foreach(module IN LISTS modules)
  file(READ ${SOURCES}/${module}.js text)
  string(REGEX REPLACE "\nimport [^\n]*" "" text "\n${text}")
  string(REGEX REPLACE "\nexport " "\n" text "${text}")
  string(APPEND script "${text}")
endforeach()
string(APPEND script "})();\n")

# What modules would keep apart: in one script two functions of a name would be one.
file(GLOB files ${SOURCES}/*.js)
list(LENGTH files files)
list(LENGTH modules listed)
if(NOT files EQUAL listed)
  message(FATAL_ERROR "${SOURCES}: ${files} modules, of which web_page.cmake lists ${listed}")
endif()
string(REGEX MATCHALL "\n(async )?(function\\*?|const|let|class) [A-Za-z0-9_$]+" declared "${script}")
set(names "")
foreach(declaration IN LISTS declared)
  string(REGEX REPLACE ".* " "" name "${declaration}")
  if(name IN_LIST names)
    message(FATAL_ERROR "${SOURCES}: '${name}' is declared twice")
  endif()
  list(APPEND names ${name})
endforeach()
if(script MATCHES "</script|<!--|\\)weir\"")
  message(FATAL_ERROR "${SOURCES}: a script has '${CMAKE_MATCH_0}', which would end it")
endif()
file(READ ${SOURCES}/style.css style)
file(READ ${SOURCES}/index.html page)
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
csp_hash("${style}" style_hash)
csp_hash("${script}" script_hash)
string(CONCAT policy
  "default-src 'none'; script-src ${script_hash}; style-src ${style_hash}; connect-src 'self'; img-src data:; "
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")

file(WRITE ${OUTPUT}/web_page.html "${page}")
file(WRITE ${OUTPUT}/web_page.csp "${policy}")
file(WRITE ${OUTPUT}/web_page.cpp "#include \"server/web_page.h\"

namespace weir {

std::string_view web_page() {
  static constexpr char kPage[] = R\"weir(${page})weir\";
  return {kPage, sizeof(kPage) - 1};
}

std::string_view web_page_policy() { return R\"weir(${policy})weir\"; }

}  // namespace weir
")
