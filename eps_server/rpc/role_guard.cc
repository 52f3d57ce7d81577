#include "eps_server/rpc/role_guard.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "wire/grpc_status.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr const char* kServices[] = {"eps.v1.Control", "eps.v1.Data", "eps.v1.Shard",
                                     "eps.v1.Scheduler"};
constexpr absl::string_view kHealth = "/grpc.health.v1.Health/";
constexpr char kPathKey[] = ":path";
constexpr char kUriKey[] = "peer_spiffe_id";

}  // namespace

AccessTable AccessTable::Generated() {
  AccessTable table;
  for (const char* name : kServices) {
    const google::protobuf::ServiceDescriptor* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    EPS_CHECK_MSG(service != nullptr, name << " is not linked");
    for (int i = 0; i < service->method_count(); ++i) {
      const google::protobuf::MethodDescriptor& rpc = *service->method(i);
      std::set<v1::Role>& roles = table.allowed_[absl::StrCat("/", name, "/", rpc.name())];
      for (int j = 0; j < rpc.options().ExtensionSize(v1::allow); ++j) {
        roles.insert(rpc.options().GetExtension(v1::allow, j));
      }
    }
  }
  return table;
}

absl::Status AccessTable::Check(absl::string_view path, v1::Role role) const {
  if (absl::StartsWith(path, kHealth)) return absl::OkStatus();
  const auto found = allowed_.find(path);
  if (found == allowed_.end()) {
    return absl::PermissionDeniedError(absl::StrCat("no role may call ", path));
  }
  const std::set<v1::Role>& roles = found->second;
  if (roles.count(v1::ROLE_ANY) > 0 || roles.count(role) > 0) return absl::OkStatus();
  std::vector<std::string> names;
  for (const v1::Role allowed : roles) names.push_back(RoleName(allowed));
  return absl::PermissionDeniedError(absl::StrCat(
      "role ", RoleName(role), " may not call ", path, "; allowed: ", absl::StrJoin(names, ", "),
      "; use a certificate of such a role (security.dir)"));
}

std::set<std::string> AccessTable::Paths() const {
  std::set<std::string> paths;
  for (const auto& rpc : allowed_) paths.insert(rpc.first);
  return paths;
}

absl::Status RoleGuard::Check(const InputMetadata& metadata, const grpc::AuthContext& peer) const {
  const auto path = metadata.find(kPathKey);
  if (path == metadata.end()) return absl::PermissionDeniedError("a call without a path");
  const std::vector<grpc::string_ref> uris = peer.FindPropertyValues(kUriKey);
  const std::string uri = uris.size() == 1 ? std::string(uris[0].data(), uris[0].size()) : "";
  EPS_ASSIGN_OR_RETURN(const v1::Role role, RoleOfUri(uri, trust_domain_));
  return table_.Check(absl::string_view(path->second.data(), path->second.size()), role);
}

grpc::Status RoleGuard::Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                                OutputMetadata*, OutputMetadata*) {
  const absl::Status status = Check(metadata, *peer);
  if (status.ok()) return grpc::Status::OK;
  const uint64_t count = denied_.fetch_add(1) + 1;
  if ((count & (count - 1)) == 0) {
    EPS_LOG_WARN("calls denied so far: " << count << "; the last one: " << status.ToString());
  }
  return ToGrpc(status);
}

}  // namespace eps
