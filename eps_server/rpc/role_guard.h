#ifndef EPS_SERVER_RPC_ROLE_GUARD_H_
#define EPS_SERVER_RPC_ROLE_GUARD_H_

// Which role may call which RPC: the option `allow` of each RPC (proto/eps/v1/access.proto),
// enforced at the beginning of every call, with the token of the call. Handlers check which jobs a
// caller reaches (caller_scope.h).

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps/v1/access.pb.h"
#include "eps_server/rpc/call_rate.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "wire/security/job_token.h"
#include "wire/security/reloaded.h"

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

// Which tokens a server accepts.
struct TokenRules {
  std::string keys_file;  // of ParseTokenKeys; empty: it accepts none
  bool required = false;  // every role but "server" needs one
};

// Refuses calls of peers whose certificate has no role of this trust domain, or one that may not
// call the RPC, calls with a token that is not valid for that role, or without one that is
// required, and calls of a connection that makes too many a second. For servers with TLS only: gRPC
// ends the process if it is set on plaintext. Thread-safe; reads the file of keys from time to
// time, and does not block otherwise.
class RoleGuard final : public grpc::AuthMetadataProcessor {
 public:
  // Errors of reading the keys; InvalidArgument if tokens are required and there is no file.
  static absl::StatusOr<std::shared_ptr<RoleGuard>> Create(std::string trust_domain,
                                                           const TokenRules& tokens);

  // The calls that were refused so far.
  uint64_t denied() const { return denied_.load(); }

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  using KeyFile = std::shared_ptr<Reloaded<std::vector<TokenKey>>>;

  RoleGuard(std::string trust_domain, KeyFile keys_or_null, bool token_required)
      : trust_domain_(std::move(trust_domain)),
        keys_or_null_(std::move(keys_or_null)),
        token_required_(token_required) {}
  absl::Status Check(const InputMetadata& metadata, const grpc::AuthContext& peer);
  absl::Status CheckToken(const InputMetadata& metadata, v1::Role role) const;

  const AccessTable table_ = AccessTable::Generated();
  const std::string trust_domain_;
  const KeyFile keys_or_null_;
  const bool token_required_;
  CallRate rate_;
  std::atomic<uint64_t> denied_{0};
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_ROLE_GUARD_H_
