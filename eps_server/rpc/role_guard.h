#ifndef EPS_SERVER_RPC_ROLE_GUARD_H_
#define EPS_SERVER_RPC_ROLE_GUARD_H_

// Which role may call which RPC: the option `allow` of each RPC (proto/eps/v1/access.proto),
// enforced at the beginning of every call.

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "eps/v1/access.pb.h"
#include "grpcpp/security/auth_metadata_processor.h"

namespace eps {

// The RPCs of a server and the roles that may call them. Immutable.
class AccessTable {
 public:
  // The services of eps.v1, from their descriptors, and grpc.health.v1.Health, which is open to
  // all.
  static AccessTable Generated();

  // `path` is that of the request: "/eps.v1.Control/Hello". PermissionDenied for a role that the
  // RPC does not allow, and for an RPC that is not in the table.
  absl::Status Check(absl::string_view path, v1::Role role) const;
  // The paths of all RPCs.
  std::set<std::string> Paths() const;

 private:
  std::map<std::string, std::set<v1::Role>, std::less<>> allowed_;  // by path
};

// Refuses calls of peers whose certificate has no role of this trust domain, or one that may not
// call the RPC. For servers with TLS only: gRPC ends the process if it is set on plaintext.
// Thread-safe; does not block.
class RoleGuard final : public grpc::AuthMetadataProcessor {
 public:
  explicit RoleGuard(std::string trust_domain) : trust_domain_(std::move(trust_domain)) {}

  // The calls that were refused so far.
  uint64_t denied() const { return denied_.load(); }

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  absl::Status Check(const InputMetadata& metadata, const grpc::AuthContext& peer) const;

  const AccessTable table_ = AccessTable::Generated();
  const std::string trust_domain_;
  std::atomic<uint64_t> denied_{0};
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_ROLE_GUARD_H_
