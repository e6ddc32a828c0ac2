# Flags that every target gets. Floating point: no contraction, no fast-math (docs/numerics.md); every FMA is explicit.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Werror -Wshadow -Wno-missing-field-initializers -ffp-contract=off -fno-math-errno)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
if(WEIR_SANITIZE)
  add_compile_options(-fsanitize=${WEIR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${WEIR_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 takes boost::optional and std::regex for uninitialised once sanitizers have changed the code.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  if(WEIR_SANITIZE MATCHES thread)
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)  # fences are unknown to ThreadSanitizer; the locks suffice
  endif()
else()
  add_link_options(-static-libstdc++ -static-libgcc)
endif()
if(WEIR_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # the libraries report their branches to the fuzz targets
endif()

find_package(Threads REQUIRED)
set(Boost_USE_STATIC_LIBS ON)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)

# The static libraries, so that the program runs where neither is installed.
function(weir_static_library name header library)
  find_path(${name}_INCLUDE ${header} REQUIRED)
  find_library(${name}_LIBRARY lib${library}.a REQUIRED)
  add_library(${name} INTERFACE IMPORTED)
  target_include_directories(${name} SYSTEM INTERFACE ${${name}_INCLUDE})
  target_link_libraries(${name} INTERFACE ${${name}_LIBRARY})
endfunction()
weir_static_library(weir_pcre2 pcre2.h pcre2-8)       # Debian: libpcre2-dev
weir_static_library(weir_utf8proc utf8proc.h utf8proc)  # Debian: libutf8proc-dev
weir_static_library(weir_xxhash xxhash.h xxhash)        # Debian: libxxhash-dev

# GCC 12 warns about its own intrinsics (PR 105593) in the AVX-512 headers: -Wno-*uninitialized there only.
# Instruction sets that kernels (*_cpu.cpp) are compiled for; each is chosen at start-up when the processor has it.
set(WEIR_ISAS avx2 avx512)
# *_int8_cpu.cpp: integer products, which on AVX-512 use VNNI (WEIR_ISA_avx512 is defined too); without it the AVX2 kernels.
set(WEIR_INT8_ISAS avx2 avx512vnni)
set(WEIR_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2 -O3)
set(WEIR_FLAGS_avx512 -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512 -O3 -Wno-uninitialized -Wno-maybe-uninitialized)
set(WEIR_FLAGS_avx512vnni ${WEIR_FLAGS_avx512} -mavx512vnni -fno-tree-slp-vectorize)
set(WEIR_DEFINITIONS_avx512vnni WEIR_ISA_avx512=1)
