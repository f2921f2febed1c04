// Preloaded into Chromium, it gives WebGPU Mesa's lavapipe where it opens SwiftShader: a third of the time for the same
// kernels, and 16-bit floats. No flag of Chromium does that. ANGLE opens SwiftShader as well, by another spelling of the
// path, and keeps it: it needs surfaces. LAVAPIPE names the driver's library.
//
// Chromium takes a driver in software for SwiftShader alone, so the device bears SwiftShader's numbers.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*GetProcAddr)(void* instance, const char* name);
typedef void* (*Dlopen)(const char* path, int flags);

// The first words of VkPhysicalDeviceProperties.
typedef struct {
  uint32_t api_version, driver_version, vendor_id, device_id;
} Properties;

// VkPhysicalDeviceProperties2.
typedef struct {
  uint32_t structure_type;
  void* next;
  Properties properties;
} Properties2;

static void (*properties)(void* device, Properties* found);
static void (*properties2)(void* device, Properties2* found);

static void rename_device(Properties* found) {
  found->vendor_id = 0x1AE0;
  found->device_id = 0xC0DE;
}

static void renamed_properties(void* device, Properties* found) {
  properties(device, found);
  rename_device(found);
}

static void renamed_properties2(void* device, Properties2* found) {
  properties2(device, found);
  rename_device(&found->properties);
}

static void* real_dlopen(const char* path, int flags) {
  return ((Dlopen)dlsym(RTLD_NEXT, "dlopen"))(path, flags);
}

// What Dawn asks the library for that it has opened.
Function vkGetInstanceProcAddr(void* instance, const char* name) {
  static GetProcAddr driver;
  if (!driver) {
    void* library = real_dlopen(getenv("LAVAPIPE"), RTLD_NOW);
    driver = library ? (GetProcAddr)dlsym(library, "vk_icdGetInstanceProcAddr") : 0;
    if (!driver) return 0;
  }
  Function found = driver(instance, name);
  if (found && !strcmp(name, "vkGetPhysicalDeviceProperties")) {
    properties = (void (*)(void*, Properties*))found;
    return (Function)renamed_properties;
  }
  if (found && !strncmp(name, "vkGetPhysicalDeviceProperties2", 30)) {
    properties2 = (void (*)(void*, Properties2*))found;
    return (Function)renamed_properties2;
  }
  return found;
}

void* dlopen(const char* path, int flags) {
  if (path && getenv("LAVAPIPE") && strstr(path, "/libvk_swiftshader.so") && !strstr(path, "/./")) {
    Dl_info here;
    if (dladdr((void*)dlopen, &here)) path = here.dli_fname;
  }
  return real_dlopen(path, flags);
}
