// An NVIDIA driver as the program finds it where the installed one is too old or sees no card.
#include <cstdlib>

extern "C" int cuDriverGetVersion(int* version) {
  const char* is = std::getenv("BROKEN_DRIVER_VERSION");
  *version = is != nullptr ? std::atoi(is) : 12000;
  return 0;
}

extern "C" int cuInit(unsigned) {
  return 100;  // CUDA_ERROR_NO_DEVICE
}
