#include "base/plugin/shared_object.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kShownOfName = 64;  // longer than any name

absl::Status Errno(const std::string& path, absl::string_view call) {
  const int error = errno;
  const std::string text = absl::StrCat(path, ": ", call, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::InternalError(text);
}

absl::StatusOr<std::string> ReadBytes(const std::string& path) {
  // O_NONBLOCK: a pipe that has no writer is refused below, not waited for.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.ok()) return Errno(path, "open");
  struct stat facts;
  if (fstat(file.get(), &facts) != 0) return Errno(path, "fstat");
  if (!S_ISREG(facts.st_mode)) return InvalidPlugin(path, "not a regular file");
  if (static_cast<uint64_t>(facts.st_size) > kMaxPluginBytes) {
    return InvalidPlugin(path, "expected at most ", kMaxPluginBytes, " bytes, found ",
                         facts.st_size);
  }
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = read(file.get(), &bytes[done], bytes.size() - done);
    if (got < 0 && errno != EINTR) return Errno(path, "read");
    if (got == 0) return InvalidPlugin(path, "the file became shorter while it was read");
    if (got > 0) done += static_cast<size_t>(got);
  }
  return bytes;
}

// The loader of the system ends the process with SIGBUS for an object that lost its end. Finds the
// bytes that it will map.
absl::Status CheckObject(const std::string& path, const std::string& bytes) {
  ElfW(Ehdr) head;
  if (bytes.size() < sizeof(head) || bytes.compare(0, SELFMAG, ELFMAG) != 0) {
    return InvalidPlugin(path, "cannot be loaded: not an ELF object");
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  const auto in_file = [&bytes](uint64_t at, uint64_t size) {
    return at <= bytes.size() && size <= bytes.size() - at;
  };
  bool whole = head.e_phentsize == sizeof(ElfW(Phdr)) &&
               in_file(head.e_phoff, uint64_t{head.e_phnum} * sizeof(ElfW(Phdr)));
  for (uint64_t i = 0; whole && i < head.e_phnum; ++i) {
    ElfW(Phdr) segment;
    std::memcpy(&segment, &bytes[head.e_phoff + i * sizeof(segment)], sizeof(segment));
    whole = in_file(segment.p_offset, segment.p_filesz);
  }
  if (whole) return absl::OkStatus();
  return InvalidPlugin(path,
                       "cannot be loaded: its end is missing, or it is no object of this machine");
}

// Returns a file in memory with these bytes, which nobody can change any more.
absl::StatusOr<Descriptor> SealedFile(const std::string& path, const std::string& bytes) {
  Descriptor file(memfd_create("eps_plugin", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.ok()) return Errno(path, "memfd_create");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t put = write(file.get(), &bytes[done], bytes.size() - done);
    if (put < 0 && errno != EINTR) return Errno(path, "write to memory");
    if (put > 0) done += static_cast<size_t>(put);
  }
  const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (fcntl(file.get(), F_ADD_SEALS, seals) != 0) return Errno(path, "fcntl(F_ADD_SEALS)");
  return file;
}

}  // namespace

absl::StatusOr<PluginFile> ReadPluginFile(const std::string& path, absl::string_view kind,
                                          absl::string_view expected_sha256) {
  PluginFile file;
  file.path = path;
  EPS_ASSIGN_OR_RETURN(file.bytes, ReadBytes(path));
  file.sha256 = ToHex(Sha256Of(file.bytes));
  if (expected_sha256.empty() || file.sha256 == expected_sha256) return file;
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": the job needs the ", kind, " with SHA-256 ", expected_sha256, ", and this file has ",
      file.sha256, "; copy the file of the job to this machine"));
}

absl::StatusOr<void*> LoadPluginSymbol(const PluginFile& file, const char* symbol,
                                       const char* header) {
  EPS_RETURN_IF_ERROR(CheckObject(file.path, file.bytes));
  EPS_ASSIGN_OR_RETURN(Descriptor sealed, SealedFile(file.path, file.bytes));
  // RTLD_NOW: a missing symbol is found here, and not in the first call.
  const std::string name = absl::StrCat("/proc/self/fd/", sealed.get());
  void* const object = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    std::string reason = dlerror();
    if (const size_t at = reason.find(name); at != std::string::npos) {
      reason.replace(at, name.size(), "the object");
    }
    return InvalidPlugin(file.path, "cannot be loaded: ", reason);
  }
  // Stays open: dlopen returns a loaded object for the name that it was loaded by, and the next
  // file would get the number, and so the name, of this one.
  sealed.Release();
  void* const found = dlsym(object, symbol);
  if (found == nullptr) {
    dlclose(object);
    return InvalidPlugin(file.path, "exports no function ", symbol, " (", header, ")");
  }
  return found;
}

absl::StatusOr<std::string> CopyPluginName(const std::string& path, absl::string_view of,
                                           const char* name) {
  if (name == nullptr) return InvalidPlugin(path, "the name of ", of, " is null");
  const std::string text(name, strnlen(name, kShownOfName));
  if (IsPluginName(text)) return text;
  return InvalidPlugin(path, "the name of ", of, " is \"", absl::CHexEscape(text),
                       "\"; expected 1 to 63 of a-z, 0-9 and _, beginning with a letter");
}

}  // namespace eps
