#include "optimizer/plugin/updater_plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/job/plugin_spec.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kShownOfName = 64;  // longer than any name

// The plug-ins of this process. None is ever unloaded: updates on other threads may use it.
struct Loaded {
  Mutex mu;
  std::vector<std::unique_ptr<const UpdaterPlugin>> plugins EPS_GUARDED_BY(mu);
};

Loaded* TheLoaded() {
  static Loaded* const loaded = new Loaded;
  return loaded;
}

template <class... Parts>
absl::Status Invalid(const std::string& path, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", parts...));
}

absl::Status Errno(const std::string& path, absl::string_view call) {
  const int error = errno;
  const std::string text = absl::StrCat(path, ": ", call, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::InternalError(text);
}

absl::StatusOr<std::string> ReadPlugin(const std::string& path) {
  // O_NONBLOCK: a pipe that has no writer is refused below, not waited for.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.ok()) return Errno(path, "open");
  struct stat facts;
  if (fstat(file.get(), &facts) != 0) return Errno(path, "fstat");
  if (!S_ISREG(facts.st_mode)) return Invalid(path, "not a regular file");
  if (static_cast<uint64_t>(facts.st_size) > kMaxPluginBytes) {
    return Invalid(path, "expected at most ", kMaxPluginBytes, " bytes, found ", facts.st_size);
  }
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = read(file.get(), &bytes[done], bytes.size() - done);
    if (got < 0 && errno != EINTR) return Errno(path, "read");
    if (got == 0) return Invalid(path, "the file became shorter while it was read");
    if (got > 0) done += static_cast<size_t>(got);
  }
  return bytes;
}

// The loader of the system ends the process with SIGBUS for an object that lost its end. Finds the
// bytes that it will map.
absl::Status CheckObject(const std::string& path, const std::string& bytes) {
  ElfW(Ehdr) head;
  if (bytes.size() < sizeof(head) || bytes.compare(0, SELFMAG, ELFMAG) != 0) {
    return Invalid(path, "cannot be loaded: not an ELF object");
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
  return Invalid(path, "cannot be loaded: its end is missing, or it is no object of this machine");
}

// Returns a file in memory with these bytes, which nobody can change any more.
absl::StatusOr<Descriptor> SealedFile(const std::string& path, const std::string& bytes) {
  Descriptor file(memfd_create("eps_updater", MFD_CLOEXEC | MFD_ALLOW_SEALING));
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

absl::StatusOr<eps_updater_entry*> LoadEntry(const std::string& path, const std::string& bytes) {
  EPS_RETURN_IF_ERROR(CheckObject(path, bytes));
  EPS_ASSIGN_OR_RETURN(Descriptor file, SealedFile(path, bytes));
  // RTLD_NOW: a missing symbol is found here, and not in the first update.
  const std::string name = absl::StrCat("/proc/self/fd/", file.get());
  void* const object = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    std::string reason = dlerror();
    if (const size_t at = reason.find(name); at != std::string::npos) {
      reason.replace(at, name.size(), "the object");
    }
    return Invalid(path, "cannot be loaded: ", reason);
  }
  // Stays open: dlopen returns a loaded object for the name that it was loaded by, and the next
  // file would get the number, and so the name, of this one.
  file.Release();
  void* const symbol = dlsym(object, EPS_UPDATER_SYMBOL);
  if (symbol == nullptr) {
    dlclose(object);
    return Invalid(path, "exports no function ", EPS_UPDATER_SYMBOL,
                   " (optimizer/plugin/eps_updater.h)");
  }
  return reinterpret_cast<eps_updater_entry*>(symbol);
}

absl::StatusOr<std::string> CheckName(const std::string& path, absl::string_view of,
                                      const char* name) {
  if (name == nullptr) return Invalid(path, "the name of ", of, " is null");
  const std::string text(name, strnlen(name, kShownOfName));
  if (IsPluginName(text)) return text;
  return Invalid(path, "the name of ", of, " is \"", absl::CHexEscape(text),
                 "\"; expected 1 to 63 of a-z, 0-9 and _, beginning with a letter");
}

absl::StatusOr<std::vector<std::string>> CheckFields(const std::string& path,
                                                     const eps_updater& updater) {
  if (updater.field_count > EPS_UPDATER_MAX_FIELDS) {
    return Invalid(path, "has ", updater.field_count, " state fields; expected at most ",
                   EPS_UPDATER_MAX_FIELDS);
  }
  if (updater.field_count > 0 && updater.fields == nullptr) return Invalid(path, "fields is null");
  std::vector<std::string> fields;
  for (uint32_t i = 0; i < updater.field_count; ++i) {
    EPS_ASSIGN_OR_RETURN(fields.emplace_back(),
                         CheckName(path, absl::StrCat("state field ", i), updater.fields[i]));
  }
  if (std::set<std::string>(fields.begin(), fields.end()).size() < fields.size()) {
    return Invalid(path, "two state fields have the same name");
  }
  return fields;
}

absl::StatusOr<std::vector<PluginParameter>> CheckParameters(const std::string& path,
                                                             const eps_updater& updater) {
  if (updater.parameter_count > EPS_UPDATER_MAX_PARAMETERS) {
    return Invalid(path, "has ", updater.parameter_count, " parameters; expected at most ",
                   EPS_UPDATER_MAX_PARAMETERS);
  }
  if (updater.parameter_count > 0 && updater.parameters == nullptr) {
    return Invalid(path, "parameters is null");
  }
  std::set<std::string> names;
  std::vector<PluginParameter> parameters;
  for (uint32_t i = 0; i < updater.parameter_count; ++i) {
    const eps_updater_parameter& from = updater.parameters[i];
    PluginParameter& to = parameters.emplace_back();
    EPS_ASSIGN_OR_RETURN(to.name, CheckName(path, absl::StrCat("parameter ", i), from.name));
    to.usual = from.usual;
    to.least = from.least;
    to.most = from.most;
    if (!std::isfinite(to.least) || !std::isfinite(to.most) ||
        !(to.least <= to.usual && to.usual <= to.most)) {
      return Invalid(path, "parameter ", to.name,
                     ": expected finite numbers with least <= usual <= most, found ", to.least,
                     ", ", to.usual, " and ", to.most);
    }
    if (!names.insert(to.name).second) return Invalid(path, "two parameters are called ", to.name);
  }
  return parameters;
}

absl::StatusOr<UpdaterPlugin> CheckUpdater(const std::string& path, const eps_updater* updater) {
  if (updater == nullptr) return Invalid(path, EPS_UPDATER_SYMBOL, "() returned null");
  if (updater->abi != EPS_UPDATER_ABI) {
    return Invalid(path, "has version ", updater->abi, " of the interface; expected ",
                   EPS_UPDATER_ABI);
  }
  UpdaterPlugin plugin;
  plugin.path = path;
  EPS_ASSIGN_OR_RETURN(plugin.name, CheckName(path, "the updater", updater->name));
  EPS_ASSIGN_OR_RETURN(plugin.fields, CheckFields(path, *updater));
  EPS_ASSIGN_OR_RETURN(plugin.parameters, CheckParameters(path, *updater));
  if (updater->update == nullptr) return Invalid(path, "update is null");
  if (updater->reference == nullptr) return Invalid(path, "reference is null");
  plugin.update = updater->update;
  plugin.reference = updater->reference;
  return plugin;
}

}  // namespace

absl::StatusOr<const UpdaterPlugin*> LoadUpdaterPlugin(const std::string& path,
                                                       absl::string_view expected_sha256) {
  EPS_ASSIGN_OR_RETURN(const std::string bytes, ReadPlugin(path));
  const std::string sha256 = ToHex(Sha256Of(bytes));
  if (!expected_sha256.empty() && sha256 != expected_sha256) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": the job needs the updater with SHA-256 ", expected_sha256,
                     ", and this file has ", sha256, "; copy the file of the job to this machine"));
  }
  if (const UpdaterPlugin* const loaded = FindLoadedPlugin(sha256)) return loaded;
  EPS_ASSIGN_OR_RETURN(eps_updater_entry* const entry, LoadEntry(path, bytes));
  EPS_ASSIGN_OR_RETURN(UpdaterPlugin plugin, CheckUpdater(path, entry()));
  plugin.sha256 = sha256;
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  return loaded->plugins.emplace_back(std::make_unique<const UpdaterPlugin>(std::move(plugin)))
      .get();
}

const UpdaterPlugin* FindLoadedPlugin(absl::string_view sha256) {
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  for (const auto& plugin : loaded->plugins) {
    if (plugin->sha256 == sha256) return plugin.get();
  }
  return nullptr;
}

std::vector<const UpdaterPlugin*> LoadedPlugins() {
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  std::vector<const UpdaterPlugin*> plugins;
  for (const auto& plugin : loaded->plugins) plugins.push_back(plugin.get());
  return plugins;
}

}  // namespace eps
