#include "cli/serve.h"

#include "common/exit_code.h"
#include "eps_server/shell/server.h"

namespace eps {

absl::Status RunServe(const Config& config) {
  ServerOptions options;
  options.listen = config.servers.listen;
  options.threads = config.servers.threads;
  options.memory_limit_bytes = config.servers.memory_limit;
  options.insecure = config.servers.insecure;
  options.part_timeout_ms = static_cast<uint64_t>(config.servers.worker_timeout_ms);
  options.jit_depth = static_cast<uint32_t>(config.servers.jit_depth);
  const int code = RunServer(options, nullptr);
  if (code == 0) return absl::OkStatus();
  return WithExitCode(absl::InternalError(""), static_cast<ExitCode>(code));
}

}  // namespace eps
