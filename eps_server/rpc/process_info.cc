#include "eps_server/rpc/process_info.h"

namespace eps {

void ProcessInfo::FillStatus(v1::StatusReply* status) const {
  status->set_server(address);
  status->set_incarnation(incarnation);
  status->set_memory_limit_bytes(account->limit_bytes());
  for (int k = 0; k < MemoryAccount::kKinds; ++k) {
    const MemoryKind kind = static_cast<MemoryKind>(k);
    v1::MemoryUse* use = status->add_memory();
    use->set_kind(MemoryKindName(kind));
    use->set_live_bytes(account->live_bytes(kind));
    use->set_peak_bytes(account->peak_bytes(kind));
  }
  if (add_storage != nullptr) add_storage(status);
  const std::chrono::duration<double> uptime = std::chrono::steady_clock::now() - start;
  status->set_uptime_seconds(uptime.count());
}

}  // namespace eps
