/*!
 * The launcher's functions for callers in C, and the number of the mistake that is planted in it.
 */
#include "launcher.h"
#include "written.h"

int planted = 0;

using gemma4_metal::Buffer;
using gemma4_metal::Error;
using gemma4_metal::Kernel;
using gemma4_metal::Launcher;

namespace {

Error last;

const char* text(const Error& error) {
  last = error;
  return last.text;
}

}  // namespace

extern "C" {

void plant(int number) { planted = number; }
Launcher* launcher_new() { return new Launcher; }
const char* launcher_open(Launcher* launcher, size_t launches) {
  return text(launcher->Open(launches));
}
void launcher_open_archive(Launcher* launcher, const char* path) { launcher->OpenArchive(path); }
bool launcher_save_archive(Launcher* launcher, const char* path) {
  return launcher->SaveArchive(path);
}
Buffer* launcher_allocate(Launcher* launcher, size_t bytes) { return launcher->Allocate(bytes); }
void launcher_free(Launcher* launcher, Buffer* buffer) { launcher->Free(buffer); }
void launcher_upload(Launcher* launcher, const void* source, Buffer* buffer, size_t offset,
                     size_t bytes) {
  launcher->Upload(source, buffer, offset, bytes);
}
void launcher_read(Launcher* launcher, Buffer* buffer, size_t offset, void* target, size_t bytes) {
  launcher->Read(buffer, offset, target, bytes);
}
void launcher_copy(Launcher* launcher, Buffer* source, size_t from, Buffer* target, size_t to,
                   size_t bytes) {
  launcher->Copy(source, from, target, to, bytes);
}
Kernel* kernel_new(const char* name, const char* source, size_t buffers) {
  return new Kernel{name, source, buffers};
}
void kernel_free(Launcher* launcher, Kernel* kernel) {
  launcher->Forget(kernel);
  delete kernel;
}
const char* launcher_launch(Launcher* launcher, Kernel* kernel, Buffer* const* buffers,
                            size_t threadgroups, size_t threads) {
  return text(launcher->Launch(kernel, buffers, nullptr, 0, {threadgroups, 1, 1}, {threads, 1, 1}));
}
uint32_t written_buffers(const char* source, size_t count) {
  return gemma4_metal::WrittenBuffers(source, count);
}
void launcher_submit(Launcher* launcher) { launcher->Submit(); }
void launcher_wait(Launcher* launcher) { launcher->Wait(); }
const char* launcher_error(Launcher* launcher) { return text(launcher->TakeError()); }
int64_t launcher_count(Launcher* launcher, int which) {
  const auto& counts = launcher->counts();
  const int64_t all[] = {counts.launches,     counts.command_buffers, counts.barriers,
                         counts.waits,        counts.staged_uploads,  counts.kept_pipelines,
                         counts.new_pipelines};
  return all[which];
}
}
