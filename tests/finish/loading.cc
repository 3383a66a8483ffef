// Loads a library as PyTorch would, stands in for the CUDA runtime, and tells what the library hands to it.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>

struct Wrapper {
  uint32_t magic, version;
  const unsigned char *data;
  void *more;
};

static int call_throws;

extern "C" {
void **__cudaRegisterFatBinary(Wrapper *wrapper) {
  uint64_t size;
  std::memcpy(&size, wrapper->data + 8, sizeof size);
  std::printf("%x %x %llu", wrapper->magic, *(const uint32_t *)wrapper->data, (unsigned long long)size);
  for (const unsigned char *at = wrapper->data + 16, *end = at + size; at < end;) {
    uint32_t header, sm;
    uint64_t padded;
    std::memcpy(&header, at + 4, sizeof header);
    std::memcpy(&padded, at + 8, sizeof padded);
    std::memcpy(&sm, at + 28, sizeof sm);
    std::printf(" %u:%u", at[0], sm);
    at += header + padded;
  }
  std::printf("\n");
  return new void *;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *, char *, const char *name, int, void *, void *, void *, void *, int *) {
  std::printf("kernel %s\n", name);
}
void __cudaRegisterVar(void **, char *, char *, const char *name, int, size_t, int, int) { std::printf("variable %s\n", name); }
unsigned __cudaPushCallConfiguration(...) {
  if (call_throws) throw 121;
  return 1;
}
int __cudaPopCallConfiguration(...) { return 0; }
int atexit(void (*)()) noexcept { return 0; }  // the libraries bring no C library of their own
int __cudaGetKernel(...) { return 0; }
int __cudaLaunchKernel(...) { return 0; }
}

int main(int, char **argv) {
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (!library) return std::printf("%s\n", dlerror()), 1;
  for (const char *name : {"_Z10launch_jitPf", "_Z11launch_onlyPf"})
    if (auto launch = (void (*)(float *))dlsym(library, name)) {
      launch(nullptr);
      call_throws = 1;
      try {
        launch(nullptr);
      } catch (int thrown) {
        std::printf("caught %d from %s\n", thrown, name);
      }
      call_throws = 0;
    }
  std::FILE *maps = std::fopen("/proc/self/maps", "r");
  for (char line[4096]; std::fgets(line, sizeof line, maps);)
    if (std::strstr(line, argv[1])) std::printf("map %s", line);
  return 0;
}
