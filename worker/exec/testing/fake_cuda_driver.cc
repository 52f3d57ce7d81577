// A CUDA driver with two devices, for tests of what a worker asks the driver. Built as a library of
// its own, as the real one is.

#include <cstdio>

extern "C" {

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDeviceGet(int* device, int index) {
  *device = index + 10;  // a handle, not the number
  return index >= 0 && index < 2 ? 0 : 101;
}

int cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<size_t>(size), "Model %d", device);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? device - 2 : 6;  // 8.6 and 9.6
  return 0;
}

}  // extern "C"
