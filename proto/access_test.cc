// Demands a role, a limit and a retry rule of every RPC. The descriptors are those of all files in
// proto/eps/v1: a new file or RPC is read without being listed here.

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "eps/v1/access.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using google::protobuf::MethodDescriptorProto;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kDescriptors[] = "proto/eps_v1.descriptors";
constexpr char kPlanted[] = R"(
    name: "planted.proto"
    service {
      name: "Planted"
      method {
        name: "Poke"
        options {
          [eps.v1.allow]: ROLE_WORKER
          [eps.v1.max_request_bytes]: 4194304
          [eps.v1.retry]: RETRY_IDEMPOTENT
        }
      }
    })";

// The only RPCs that need no role.
const std::set<std::string>& OpenToAll() {
  static const auto* const names = new std::set<std::string>{"Control.Hello", "Control.Status"};
  return *names;
}

bool IsStream(const MethodDescriptorProto& rpc) {
  return rpc.client_streaming() || rpc.server_streaming();
}

// Returns what is wrong with the roles of an RPC.
std::vector<std::string> RoleFaults(const std::string& name, const MethodDescriptorProto& rpc) {
  std::vector<std::string> faults;
  std::set<int> roles;
  for (int i = 0; i < rpc.options().ExtensionSize(v1::allow); ++i) {
    const v1::Role role = rpc.options().GetExtension(v1::allow, i);
    if (role == v1::ROLE_UNSPECIFIED) faults.push_back(name + ": allows an unspecified role");
    if (!roles.insert(role).second) faults.push_back(name + ": allows a role twice");
  }
  if (roles.empty()) faults.push_back(name + ": allows no role");
  if (roles.count(v1::ROLE_ANY) == 0) return faults;
  if (OpenToAll().count(name) == 0) faults.push_back(name + ": is open to all");
  if (roles.size() > 1) faults.push_back(name + ": allows all and names others");
  return faults;
}

// Returns what is missing or contradictory in the options of the RPCs of a file.
std::vector<std::string> Faults(const FileDescriptorProto& file) {
  std::vector<std::string> faults;
  for (const auto& service : file.service()) {
    for (const MethodDescriptorProto& rpc : service.method()) {
      const std::string name = service.name() + "." + rpc.name();
      for (const std::string& fault : RoleFaults(name, rpc)) faults.push_back(fault);
      if (rpc.options().GetExtension(v1::max_request_bytes) == 0) {
        faults.push_back(name + ": has no limit");
      }
      const v1::Retry retry = rpc.options().GetExtension(v1::retry);
      const bool of_streams = retry == v1::RETRY_RESUME || retry == v1::RETRY_RESTART;
      if (retry == v1::RETRY_UNSPECIFIED) {
        faults.push_back(name + ": has no retry rule");
      } else if (of_streams != IsStream(rpc)) {
        faults.push_back(name + ": has the retry rule of another kind of call");
      }
    }
  }
  return faults;
}

// The planted file with its only RPC.
class PlantedRpc : public testing::Test {
 protected:
  PlantedRpc() {
    FileDescriptorProto parsed;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kPlanted, &parsed));
    // An extension that was read from text is stored unpacked and cannot be changed.
    EXPECT_TRUE(file_.ParseFromString(parsed.SerializeAsString()));
  }

  MethodDescriptorProto* rpc() { return file_.mutable_service(0)->mutable_method(0); }
  google::protobuf::MethodOptions* options() { return rpc()->mutable_options(); }

  FileDescriptorProto file_;
};

TEST_F(PlantedRpc, PassesWithAllThreeOptions) { EXPECT_THAT(Faults(file_), IsEmpty()); }

TEST_F(PlantedRpc, NeedsEachOption) {
  options()->ClearExtension(v1::allow);
  EXPECT_THAT(Faults(file_), ElementsAre("Planted.Poke: allows no role"));
  options()->AddExtension(v1::allow, v1::ROLE_WORKER);
  options()->ClearExtension(v1::max_request_bytes);
  EXPECT_THAT(Faults(file_), ElementsAre("Planted.Poke: has no limit"));
  options()->SetExtension(v1::max_request_bytes, 1);
  options()->ClearExtension(v1::retry);
  EXPECT_THAT(Faults(file_), ElementsAre("Planted.Poke: has no retry rule"));
  rpc()->clear_options();
  EXPECT_EQ(Faults(file_).size(), 3u);
}

TEST_F(PlantedRpc, MayNotBeOpenToAll) {
  options()->SetExtension(v1::allow, 0, v1::ROLE_ANY);
  EXPECT_THAT(Faults(file_), ElementsAre("Planted.Poke: is open to all"));
  file_.mutable_service(0)->set_name("Control");
  rpc()->set_name("Hello");
  EXPECT_THAT(Faults(file_), IsEmpty());
  options()->AddExtension(v1::allow, v1::ROLE_WORKER);
  EXPECT_THAT(Faults(file_), ElementsAre("Control.Hello: allows all and names others"));
}

TEST_F(PlantedRpc, NeedsNamedRolesOnce) {
  options()->AddExtension(v1::allow, v1::ROLE_WORKER);
  EXPECT_THAT(Faults(file_), ElementsAre("Planted.Poke: allows a role twice"));
  options()->SetExtension(v1::allow, 1, v1::ROLE_UNSPECIFIED);
  EXPECT_THAT(Faults(file_), ElementsAre("Planted.Poke: allows an unspecified role"));
}

TEST_F(PlantedRpc, RetriesLikeItsKindOfCall) {
  options()->SetExtension(v1::retry, v1::RETRY_RESUME);
  EXPECT_THAT(Faults(file_),
              ElementsAre("Planted.Poke: has the retry rule of another kind of call"));
  rpc()->set_server_streaming(true);
  EXPECT_THAT(Faults(file_), IsEmpty());
  options()->SetExtension(v1::retry, v1::RETRY_SAFE);
  EXPECT_EQ(Faults(file_).size(), 1u);
}

TEST(Access, EveryRpcDeclaresItsOptions) {
  std::ifstream stream(kDescriptors, std::ios::binary);
  FileDescriptorSet files;
  ASSERT_TRUE(files.ParseFromIstream(&stream)) << kDescriptors;
  int rpcs = 0;
  for (const FileDescriptorProto& file : files.file()) {
    for (const auto& service : file.service()) rpcs += service.method_size();
    EXPECT_THAT(Faults(file), IsEmpty()) << file.name();
  }
  EXPECT_GE(rpcs, 13) << "RPCs are missing from " << kDescriptors;
}

}  // namespace
}  // namespace eps
