#include "storage/csd/opencl/opencl_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/csd/opencl/chunk_updater.h"
#include "storage/csd/opencl/session.h"

namespace eps {
namespace {

uint64_t AfterBlock(const uint8_t* address) {
  return reinterpret_cast<uintptr_t>(address) % kDiskBlock;
}

}  // namespace

// One buffer of the session, and the updater that computes in it. Thread-safe.
class OpenClDevice::Memory {
 public:
  static absl::StatusOr<std::unique_ptr<Memory>> Allocate(const FileDeviceOptions& options,
                                                          size_t index, const JobSpec& spec,
                                                          MemoryAccount* account);
  ~Memory() { account_->Release(MemoryKind::kState, charged_); }

  const opencl::MemoryPart& part() const { return part_; }
  opencl::Session* session() const { return session_.get(); }
  opencl::ChunkUpdater* updater() const { return updater_.get(); }
  // Maps blocks of the memory at a multiple of a block, so that a file can transfer them.
  absl::StatusOr<uint8_t*> Map(cl_map_flags flags, uint64_t at, uint64_t bytes) const;

 private:
  Memory(std::unique_ptr<opencl::Session> session, MemoryAccount* account)
      : session_(std::move(session)), account_(account) {}

  absl::Status Align();

  const std::unique_ptr<opencl::Session> session_;
  MemoryAccount* const account_;
  uint64_t charged_ = 0;
  opencl::MemoryPart part_;
  std::unique_ptr<opencl::ChunkUpdater> updater_;
};

absl::StatusOr<std::unique_ptr<OpenClDevice::Memory>> OpenClDevice::Memory::Allocate(
    const FileDeviceOptions& options, size_t index, const JobSpec& spec, MemoryAccount* account) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<opencl::Session> session,
                       opencl::Session::Open(options.name, index));
  std::unique_ptr<Memory> memory(new Memory(std::move(session), account));
  if (memory->session_->uses_host_memory()) {
    EPS_RETURN_IF_ERROR(account->TryCharge(MemoryKind::kState, options.dram_bytes));
    memory->charged_ = options.dram_bytes;
  }
  // A block more, because a runtime may begin anywhere.
  EPS_ASSIGN_OR_RETURN(memory->part_.buffer,
                       memory->session_->NewBuffer(CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                                   options.dram_bytes + kDiskBlock));
  memory->part_.bytes = options.dram_bytes;
  EPS_RETURN_IF_ERROR(memory->Align());
  EPS_ASSIGN_OR_RETURN(memory->updater_, opencl::ChunkUpdater::New(spec, memory->session_.get(),
                                                                   memory->part_, account));
  return memory;
}

absl::Status OpenClDevice::Memory::Align() {
  EPS_ASSIGN_OR_RETURN(uint8_t* const mapped,
                       session_->Map(part_.buffer, CL_MAP_READ, 0, kDiskBlock));
  part_.begin = (kDiskBlock - AfterBlock(mapped)) % kDiskBlock;
  return session_->Unmap(part_.buffer, mapped);
}

absl::StatusOr<uint8_t*> OpenClDevice::Memory::Map(cl_map_flags flags, uint64_t at,
                                                   uint64_t bytes) const {
  EPS_ASSIGN_OR_RETURN(uint8_t* const mapped,
                       session_->Map(part_.buffer, flags, part_.begin + at, bytes));
  if (AfterBlock(mapped) == 0) return mapped;
  EPS_RETURN_IF_ERROR(session_->Unmap(part_.buffer, mapped));
  return absl::InternalError(absl::StrCat(
      session_->description(), ": clEnqueueMapBuffer maps ", bytes, " bytes ", AfterBlock(mapped),
      " bytes after a multiple of ", kDiskBlock, "; files need the multiple: use another runtime"));
}

absl::StatusOr<std::unique_ptr<Device>> OpenClDevice::Open(const FileDeviceOptions& options,
                                                           size_t index, const JobSpec& spec,
                                                           Disk* disk, Executor* executor,
                                                           MemoryAccount* account) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> medium, OpenMedium(options, disk));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<Memory> memory,
                       Memory::Allocate(options, index, spec, account));
  return std::unique_ptr<Device>(
      new OpenClDevice(options, std::move(medium), executor, std::move(memory)));
}

OpenClDevice::OpenClDevice(const FileDeviceOptions& options, std::unique_ptr<AsyncFile> medium,
                           Executor* executor, std::unique_ptr<Memory> memory)
    : FileDevice({options.name, options.media_bytes, options.dram_bytes, /*has_codecs=*/false},
                 std::move(medium), executor),
      memory_(std::move(memory)) {}

OpenClDevice::~OpenClDevice() = default;

absl::Status OpenClDevice::WriteMemory(absl::Span<const uint8_t> from, uint64_t at) {
  const opencl::MemoryPart& part = memory_->part();
  return memory_->session()->Write(part.buffer, part.begin + at, from);
}

absl::Status OpenClDevice::ReadMemory(uint64_t at, absl::Span<uint8_t> into) {
  const opencl::MemoryPart& part = memory_->part();
  return memory_->session()->Read(part.buffer, part.begin + at, into);
}

Device::Done OpenClDevice::Unmapping(uint8_t* mapped, Done done) {
  return [this, mapped, done = std::move(done)](absl::Status status) {
    executor()->Post([this, mapped, done, status = std::move(status)] {
      const absl::Status unmapped = memory_->session()->Unmap(memory_->part().buffer, mapped);
      done(status.ok() ? unmapped : status);
    });
  };
}

void OpenClDevice::Load(uint64_t from, uint64_t at, uint64_t bytes, Done done) {
  executor()->Post([this, from, at, bytes, done = std::move(done)] {
    const absl::StatusOr<uint8_t*> mapped = memory_->Map(CL_MAP_WRITE_INVALIDATE_REGION, at, bytes);
    if (!mapped.ok()) return done(mapped.status());
    medium()->Read(from, absl::MakeSpan(*mapped, bytes), Unmapping(*mapped, done));
  });
}

void OpenClDevice::Store(uint64_t at, uint64_t to, uint64_t bytes, Done done) {
  executor()->Post([this, at, to, bytes, done = std::move(done)] {
    const absl::StatusOr<uint8_t*> mapped = memory_->Map(CL_MAP_READ, at, bytes);
    if (!mapped.ok()) return done(mapped.status());
    medium()->Write(to, absl::MakeConstSpan(*mapped, bytes), Unmapping(*mapped, done));
  });
}

absl::StatusOr<std::string> OpenClDevice::RunKernel(const std::string& kernel, uint64_t at,
                                                    uint64_t bytes) {
  return memory_->updater()->Run(kernel, at, bytes);
}

}  // namespace eps
