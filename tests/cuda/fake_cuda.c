/*
 * A CUDA without a GPU, for tests of what the runtime tells a device to do: `libcudart.so.13` and
 * `libcuda.so.1` in the functions that TVM's CUDA runtime and ours call. Device memory is the
 * host's, and a launched kernel computes nothing: it is written down. Copies are done at once, but
 * those to the device on a stream beside the default one when somebody waits for them.
 *
 * Streams, captures and graphs follow CUDA's rules as far as they are tested: a launch on a
 * capturing stream becomes a node, an allocation ends a capture that was not begun as relaxed, and
 * launching a graph launches its nodes, copies of tensors among them. Virtual memory is the
 * system's: a handle is a file without a name, which addresses map. `fake_fail` makes a function
 * return an error.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_PARAMS 32
#define MAX_LAUNCHES (1 << 17)
#define MAX_KERNELS 1024
enum { kSuccess = 0, kMemory = 2, kCaptureUnsupported = 900, kCaptureInvalidated = 901 };
enum { kRelaxed = 2 };

typedef struct {
  char name[192];
  int params;
  int waits; /* for the end of the kernel before, so that it may begin early */
} Kernel;

typedef struct {
  const Kernel* kernel;
  uint32_t dims[7];
  uint64_t params[MAX_PARAMS];
  int from_graph;
  int begins_early;
  int64_t due; /* copies that had not been done when it was launched */
  void* to;    /* of a copy, which has no kernel */
  const void* from;
  size_t size;
} Launch;

typedef struct {
  Launch* launches;
  size_t count;
} Graph;

typedef struct {
  int capturing, mode, invalid;
  Graph graph;
} Stream;

typedef struct {
  void* to;
  const void* from;
  size_t size;
} Copy;

static Kernel kernels[MAX_KERNELS];
static Copy* copies; /* on streams beside the default one, in their order */
static int64_t copies_asked, copies_done, launches_before; /* that copies come after */
static int kernel_count;
static Launch* log_of_launches;
static size_t log_count;
static Stream* capturing; /* one capture at a time is enough here */
static char failing[64];
typedef struct {
  unsigned char from_port, to_port, type, reserved[5];
} Edge;

static int graphs_alive, execs_alive, streams_alive, events_alive, corrupting, capability = 9;
static void* removed; /* end of the edge that was removed last */
static int64_t uploads, downloads, bytes_alive, host_bytes_alive;
static int64_t handles_alive[4], reserved_bytes, mapped_bytes; /* handles by their place */
static size_t free_bytes = (size_t)1 << 36;

#define FAILS(code) \
  if (strcmp(failing, __func__) == 0) return code

/* --- what tests ask --- */

void fake_fail(const char* function) { snprintf(failing, sizeof(failing), "%s", function); }
void fake_corrupt(int on) { corrupting = on; }
void fake_capability(int major) { capability = major; }
void fake_clear(void) { log_count = 0, uploads = 0, downloads = 0; }
int64_t fake_launches(void) { return (int64_t)log_count; }
int64_t fake_uploads(void) { return uploads; }
int64_t fake_downloads(void) { return downloads; }
int64_t fake_bytes(void) { return bytes_alive; }
int64_t fake_host_bytes(void) { return host_bytes_alive; }
int64_t fake_handles(int place) { return handles_alive[place]; }
int64_t fake_reserved(void) { return reserved_bytes; }
int64_t fake_mapped(void) { return mapped_bytes; }
void fake_free(int64_t bytes) { free_bytes = (size_t)bytes; }
int fake_alive(void) { return graphs_alive + execs_alive + streams_alive + events_alive; }
int fake_capturing(void) { return capturing != NULL; }
const char* fake_name(int64_t i) { return log_of_launches[i].kernel->name; }
int fake_from_graph(int64_t i) { return log_of_launches[i].from_graph; }
int fake_begins_early(int64_t i) { return log_of_launches[i].begins_early; }
int fake_param_count(int64_t i) { return log_of_launches[i].kernel->params; }
int64_t fake_due(int64_t i) { return log_of_launches[i].due; }
int64_t fake_launches_before(void) { return launches_before; }
int64_t fake_copies_due(void) { return copies_asked - copies_done; }
uint64_t fake_param(int64_t i, int j) { return log_of_launches[i].params[j]; }
uint32_t fake_dim(int64_t i, int j) { return log_of_launches[i].dims[j]; }

static void write_down(const Launch* launch, int from_graph) {
  if (log_of_launches == NULL) log_of_launches = malloc(sizeof(Launch) * MAX_LAUNCHES);
  if (log_count == MAX_LAUNCHES) abort();
  log_of_launches[log_count] = *launch;
  log_of_launches[log_count].due = copies_asked - copies_done;
  log_of_launches[log_count++].from_graph = from_graph;
}

/* --- the driver --- */

int cuDeviceGetName(char* name, int size, int device) { return snprintf(name, size, "fake"), 0; }
int cuGetErrorName(int code, const char** text) { return *text = "FAKE_ERROR", 0; }
int cuGetErrorString(int code, const char** text) { return *text = "fake error", 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return kSuccess; }
int cuModuleUnload(void* module) { return kSuccess; }
int cuTensorMapEncodeTiled(void) { return kCaptureUnsupported; }

/* The last image of a fat binary, which is that of the newest architecture. */
static const char* newest_image(const char* binary) {
  const char* text = NULL;
  uint64_t size;
  uint32_t own;
  memcpy(&size, binary + 8, sizeof(size));
  for (const char *at = binary + 16, *end = at + size; at < end; at = text + size) {
    memcpy(&own, at + 4, sizeof(own));
    memcpy(&size, at + 8, sizeof(size));
    text = at + own;
  }
  return text;
}

int cuModuleLoadData(void** module, const char* binary) {
  if (capturing && capturing->mode != kRelaxed) return kCaptureUnsupported;
  const char* ptx = newest_image(binary);
  for (const char* at = ptx; (at = strstr(at, ".visible .entry ")) != NULL;) {
    at += strlen(".visible .entry ");
    const char* open = strchr(at, '(');
    const char* close = strchr(open, ')');
    Kernel* kernel = &kernels[kernel_count++];
    snprintf(kernel->name, sizeof(kernel->name), "%.*s", (int)strcspn(at, "( \n\t"), at);
    kernel->params = 0;
    kernel->waits = strncmp(close, ") waits", 7) == 0;
    for (const char* p = open; (p = strstr(p, ".param")) != NULL && p < close; ++p)
      ++kernel->params;
    if (kernel->params > MAX_PARAMS || kernel_count == MAX_KERNELS) abort();
  }
  *module = kernels;
  return kSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  for (int i = kernel_count; i-- > 0;) {
    if (strcmp(kernels[i].name, name) == 0) return *function = &kernels[i], kSuccess;
  }
  return 500;
}

static void add_node(Stream* stream, Launch launch) {
  Graph* graph = &stream->graph;
  graph->launches = realloc(graph->launches, sizeof(Launch) * (graph->count + 1));
  graph->launches[graph->count++] = launch;
}

typedef struct {
  uint32_t grid[3], block[3], shared;
  Stream* stream;
  void* attributes;
  unsigned count;
} LaunchConfig;

int cuLaunchKernelEx(const LaunchConfig* config, Kernel* kernel, void** params, void** extra) {
  FAILS(1);
  Launch launch = {.kernel = kernel};
  memcpy(launch.dims, config, sizeof(launch.dims));
  for (int i = 0; i < kernel->params; ++i) memcpy(&launch.params[i], params[i], 8);
  Stream* stream = config->stream;
  if (stream == NULL || !stream->capturing) return write_down(&launch, 0), kSuccess;
  if (stream->invalid) return kCaptureInvalidated;
  return add_node(stream, launch), kSuccess;
}

/* --- the driver's virtual memory --- */

enum { kPage = 4096 };
typedef struct {
  int type, id;
} Location;
typedef struct {
  int type, handle_types;
  Location place;
  void* win32;
  unsigned char flags[8];
} Properties;
typedef struct {
  Location place;
  int flags;
} Access;

static int is_known(const Properties* p) {
  return p->type == 1 && p->handle_types == 0 && (p->place.type == 1 || p->place.type == 3);
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return *value = attribute == 134 ? -1 : 32, kSuccess;
}
int cuMemGetAllocationGranularity(size_t* size, const Properties* properties, int option) {
  FAILS(801);
  return *size = kPage, is_known(properties) && option == 0 ? kSuccess : 1;
}
int cuMemCreate(uint64_t* handle, size_t size, const Properties* properties, uint64_t flags) {
  FAILS(kMemory);
  if (!is_known(properties) || size % kPage || flags) return 1;
  int file = memfd_create("fake", 0);
  if (file < 0 || ftruncate(file, (off_t)size)) return kMemory;
  ++handles_alive[properties->place.type];
  return *handle = (uint64_t)file << 2 | (uint64_t)properties->place.type, kSuccess;
}
int cuMemRelease(uint64_t handle) {
  --handles_alive[handle & 3];
  return close((int)(handle >> 2)), kSuccess;
}
int cuMemAddressReserve(uint64_t* at, size_t size, size_t alignment, uint64_t near,
                        uint64_t flags) {
  FAILS(kMemory);
  void* found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return kMemory;
  reserved_bytes += (int64_t)size;
  return *at = (uint64_t)(uintptr_t)found, kSuccess;
}
int cuMemAddressFree(uint64_t at, size_t size) {
  reserved_bytes -= (int64_t)size;
  return munmap((void*)(uintptr_t)at, size) ? 1 : kSuccess;
}
int cuMemMap(uint64_t at, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
  FAILS(kMemory);
  int file = (int)(handle >> 2), fixed = MAP_SHARED | MAP_FIXED;
  if (offset || flags) return 1;
  void* found = mmap((void*)(uintptr_t)at, size, PROT_NONE, fixed, file, 0);
  return mapped_bytes += (int64_t)size, found == MAP_FAILED ? kMemory : kSuccess;
}
int cuMemUnmap(uint64_t at, size_t size) {
  FAILS(1);
  int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* found = mmap((void*)(uintptr_t)at, size, PROT_NONE, fixed, -1, 0);
  return mapped_bytes -= (int64_t)size, found == MAP_FAILED ? 1 : kSuccess;
}
int cuMemSetAccess(uint64_t at, size_t size, const Access* access, size_t count) {
  FAILS(1);
  if (count != 1 || access->place.type != 1 || access->flags != 3) return 1;
  return mprotect((void*)(uintptr_t)at, size, PROT_READ | PROT_WRITE) ? 1 : kSuccess;
}

/* --- the runtime --- */

int cudaGetDevice(int* device) { return *device = 0, kSuccess; }
int cudaSetDevice(int device) { return kSuccess; }
int cudaGetDeviceCount(int* count) { return *count = 1, kSuccess; }
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? capability : attribute == 76 ? 0 : 32; /* its major and minor number */
  return kSuccess;
}
int cudaGetDeviceProperties(void* properties, int device) { return kCaptureUnsupported; }
int cudaRuntimeGetVersion(int* version) { return *version = 13000, kSuccess; }
int cudaGetLastError(void) { return kSuccess; }
int cudaPeekAtLastError(void) { return kSuccess; }
const char* cudaGetErrorName(int code) { return code == kMemory ? "fakeOutOfMemory" : "fakeError"; }
const char* cudaGetErrorString(int code) { return "refused by the fake CUDA"; }
int cudaMemGetInfo(size_t* free, size_t* total) {
  FAILS(kMemory);
  return *free = free_bytes, *total = (size_t)1 << 36, kSuccess;
}

static void* allocate(size_t size) {
  char* block = calloc(1, size + 512);
  char* data = (char*)(((uintptr_t)block + 511) & ~(uintptr_t)255);
  ((char**)data)[-1] = block;
  ((size_t*)data)[-2] = size;
  return data;
}

int cudaMalloc(void** data, size_t size) {
  FAILS(kMemory);
  if (capturing && capturing->mode != kRelaxed) return capturing->invalid = 1, kCaptureUnsupported;
  bytes_alive += (int64_t)size;
  return *data = allocate(size), kSuccess;
}
int cudaFree(void* data) {
  if (capturing && capturing->mode != kRelaxed) return capturing->invalid = 1, kCaptureUnsupported;
  if (data == NULL) return kSuccess;
  bytes_alive -= (int64_t)((size_t*)data)[-2];
  return free(((char**)data)[-1]), kSuccess;
}
int cudaMallocHost(void** data, size_t size) {
  FAILS(kMemory);
  host_bytes_alive += (int64_t)size;
  return *data = allocate(size), kSuccess;
}
int cudaFreeHost(void* data) {
  host_bytes_alive -= (int64_t)((size_t*)data)[-2];
  return free(((char**)data)[-1]), kSuccess;
}

int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, Stream* stream) {
  FAILS(kMemory);
  if (stream && stream->capturing && kind == 3) {
    return add_node(stream, (Launch){.to = to, .from = from, .size = size}), kSuccess;
  }
  if (stream && stream->capturing) return stream->invalid = 1, kCaptureUnsupported;
  if (kind == 1) ++uploads;
  if (kind == 2) ++downloads;
  if (kind == 1 && stream) {
    copies = realloc(copies, sizeof(Copy) * (size_t)(copies_asked + 1));
    return copies[copies_asked++] = (Copy){to, from, size}, kSuccess;
  }
  return memcpy(to, from, size), kSuccess;
}
int cudaMemcpyPeerAsync(void) { return kCaptureUnsupported; }

int cudaStreamCreate(Stream** stream) {
  FAILS(kMemory);
  ++streams_alive;
  return *stream = calloc(1, sizeof(Stream)), kSuccess;
}
int cudaStreamCreateWithFlags(Stream** stream, unsigned flags) {
  FAILS(kMemory);
  return cudaStreamCreate(stream);
}
/* The first `count` of all. */
static void copy_until(int64_t count) {
  for (; copies_done < count; ++copies_done) {
    memcpy(copies[copies_done].to, copies[copies_done].from, copies[copies_done].size);
  }
}
int cudaStreamDestroy(Stream* stream) { return --streams_alive, free(stream), kSuccess; }
int cudaStreamSynchronize(Stream* stream) {
  if (stream && stream->capturing) return stream->invalid = 1, kCaptureUnsupported;
  if (stream) copy_until(copies_asked);
  return kSuccess;
}
/* An event: the copies that were asked for before it, or on the default stream the launches. */
typedef struct {
  int64_t copies, launches;
} Event;
int cudaStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
  FAILS(1);
  if (stream) launches_before = event->launches;
  if (!stream) copy_until(event->copies);
  return kSuccess;
}

int cudaStreamBeginCapture(Stream* stream, int mode) {
  FAILS(kCaptureUnsupported);
  if (stream == NULL || stream->capturing) return kCaptureUnsupported;
  stream->capturing = 1, stream->mode = mode, stream->invalid = 0;
  memset(&stream->graph, 0, sizeof(Graph));
  capturing = stream;
  return kSuccess;
}
int cudaStreamEndCapture(Stream* stream, Graph** graph) {
  if (stream == NULL || !stream->capturing) return kCaptureUnsupported;
  stream->capturing = 0;
  capturing = NULL;
  *graph = NULL;
  FAILS(kCaptureInvalidated);
  if (stream->invalid) return kCaptureInvalidated;
  *graph = malloc(sizeof(Graph));
  **graph = stream->graph;
  return ++graphs_alive, kSuccess;
}
int cudaGraphGetNodes(Graph* graph, void** nodes, size_t* count) {
  if (nodes) {
    for (size_t i = 0; i < *count; ++i) nodes[i] = &graph->launches[i];
  }
  return *count = graph->count, kSuccess;
}
/* Nodes are one after the other. */
int cudaGraphGetEdges(Graph* graph, void** starts, void** ends, Edge* edges, size_t* count) {
  size_t between = graph->count ? graph->count - 1 : 0;
  for (size_t i = 0; starts && i < between; ++i) {
    starts[i] = &graph->launches[i], ends[i] = &graph->launches[i + 1];
    edges[i] = (Edge){0};
  }
  return *count = between, kSuccess;
}
int cudaGraphRemoveDependencies(Graph* graph, void** start, void** end, Edge* edge, size_t count) {
  return removed = *end, kSuccess;
}
int cudaGraphAddDependencies(Graph* graph, Launch** start, Launch** end, Edge* edge, size_t count) {
  FAILS(1);
  if (removed != *end || *end != *start + 1 || count != 1) return 1;
  if (!(*start)->kernel->waits || !(*end)->kernel->waits) return 1;
  if (edge->from_port != 1 || edge->to_port || edge->type != 1) return 1;
  return (*end)->begins_early = 1, kSuccess;
}
int cudaGraphNodeGetType(void* node, int* type) {
  *type = strcmp(failing, __func__) == 0 || !((Launch*)node)->kernel; /* a copy, or a kernel */
  return kSuccess;
}
int cudaGraphInstantiate(Graph** exec, Graph* graph, uint64_t flags) {
  FAILS(kMemory);
  *exec = malloc(sizeof(Graph));
  (*exec)->count = graph->count;
  (*exec)->launches = malloc(sizeof(Launch) * graph->count);
  memcpy((*exec)->launches, graph->launches, sizeof(Launch) * graph->count);
  return ++execs_alive, kSuccess;
}
int cudaGraphUpload(Graph* exec, Stream* stream) { return kSuccess; }
int cudaGraphDestroy(Graph* graph) {
  free(graph->launches);
  return --graphs_alive, free(graph), kSuccess;
}
int cudaGraphExecDestroy(Graph* exec) {
  free(exec->launches);
  return --execs_alive, free(exec), kSuccess;
}
int cudaGraphLaunch(Graph* exec, Stream* stream) {
  FAILS(719);
  for (size_t i = 0; i < exec->count; ++i) {
    if (!exec->launches[i].kernel) {
      memcpy(exec->launches[i].to, exec->launches[i].from, exec->launches[i].size);
      continue;
    }
    write_down(&exec->launches[i], 1);
    if (corrupting && i + 1 == exec->count) {
      for (int j = 0; j < exec->launches[i].kernel->params; ++j) {
        *(uint32_t*)exec->launches[i].params[j] ^= 1;
      }
    }
  }
  return kSuccess;
}

int cudaEventCreate(Event** event) {
  return ++events_alive, *event = calloc(1, sizeof(Event)), kSuccess;
}
int cudaEventCreateWithFlags(Event** event, unsigned flags) {
  FAILS(kMemory);
  return cudaEventCreate(event);
}
int cudaEventDestroy(void* event) { return --events_alive, free(event), kSuccess; }
int cudaEventRecord(Event* event, Stream* stream) {
  FAILS(1);
  *event = stream ? (Event){.copies = copies_asked} : (Event){.launches = (int64_t)log_count};
  return kSuccess;
}
int cudaEventSynchronize(void* event) { return kSuccess; }
int cudaEventElapsedTime(float* milliseconds, void* a, void* b) {
  return *milliseconds = 1, kSuccess;
}
