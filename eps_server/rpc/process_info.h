#ifndef EPS_SERVER_RPC_PROCESS_INFO_H_
#define EPS_SERVER_RPC_PROCESS_INFO_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "base/memory_account.h"
#include "eps/v1/control.pb.h"
#include "wire/shm/shm_server.h"

namespace eps {

// Facts about the server process. Set up before the server listens, then immutable; the account is
// borrowed.
struct ProcessInfo {
  std::string address;
  uint64_t incarnation = 0;
  const MemoryAccount* account = nullptr;
  // Adds the counters of the data directory to a status page. Null without one; thread-safe.
  std::function<void(v1::StatusReply*)> add_storage;
  // Memory for the workers of this machine; borrowed, null without any.
  ShmServer* shm_or_null = nullptr;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  // Fills the process part of a status page.
  void FillStatus(v1::StatusReply* status) const;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_PROCESS_INFO_H_
