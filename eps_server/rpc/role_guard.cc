#include "eps_server/rpc/role_guard.h"

#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "google/protobuf/descriptor.h"
#include "wire/grpc_status.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr const char* kServices[] = {"eps.v1.Control", "eps.v1.Data", "eps.v1.Shard",
                                     "eps.v1.Scheduler"};
constexpr absl::string_view kHealth = "/grpc.health.v1.Health/";
constexpr char kPathKey[] = ":path";

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

absl::StatusOr<std::shared_ptr<RoleGuard>> RoleGuard::Create(std::string trust_domain,
                                                             const TokenRules& tokens) {
  KeyFile keys;
  if (!tokens.keys_file.empty()) {
    auto opened = Reloaded<std::vector<TokenKey>>::Open(tokens.keys_file, ParseTokenKeys);
    if (!opened.ok()) {
      return absl::Status(
          opened.status().code(),
          absl::StrCat("security.token_keys: ", std::string(opened.status().message())));
    }
    keys = *std::move(opened);
  } else if (tokens.required) {
    return absl::InvalidArgumentError(
        "security.tokens: required needs security.token_keys, a file with the keys that sign them "
        "(eps certs token-key makes one)");
  }
  return std::shared_ptr<RoleGuard>(
      new RoleGuard(std::move(trust_domain), std::move(keys), tokens.required));
}

absl::Status RoleGuard::Check(const InputMetadata& metadata, const grpc::AuthContext& peer) {
  const auto path = metadata.find(kPathKey);
  if (path == metadata.end()) return absl::PermissionDeniedError("a call without a path");
  const absl::string_view uri = UriOfCaller(peer);
  EPS_ASSIGN_OR_RETURN(const PeerName name, PeerOfUri(uri, trust_domain_));
  // The text of the URI belongs to the connection.
  if (!rate_.Admit(uri.data(), CallRate::Clock::now())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", CallRate::kPerSecond, " calls a second on one connection"));
  }
  const absl::string_view rpc(path->second.data(), path->second.size());
  EPS_RETURN_IF_ERROR(table_.Check(rpc, name.role));
  return absl::StartsWith(rpc, kHealth) ? absl::OkStatus() : CheckToken(metadata, name.role);
}

absl::Status RoleGuard::CheckToken(const InputMetadata& metadata, v1::Role role) const {
  const auto token = metadata.find(kTokenMetadata);
  if (token == metadata.end()) {
    if (!token_required_ || role == v1::ROLE_SERVER) return absl::OkStatus();
    return absl::UnauthenticatedError(
        "this server requires a token (security.tokens): name the file of yours in security.token");
  }
  if (keys_or_null_ == nullptr) {
    return absl::UnauthenticatedError(
        "this server cannot check the token of this call: give it security.token_keys, or send "
        "none (security.token)");
  }
  const absl::string_view text(token->second.data(), token->second.size());
  const int64_t now = std::time(nullptr);
  absl::StatusOr<JobToken> read = VerifyToken(text, *keys_or_null_->Get(), now);
  // The token may be of a key that is new.
  if (!read.ok()) read = VerifyToken(text, *keys_or_null_->GetNewest(), now);
  if (!read.ok()) return read.status();
  if (read->role == role) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat("a token of role ", RoleName(read->role),
                                                 " with a certificate of role ", RoleName(role)));
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
