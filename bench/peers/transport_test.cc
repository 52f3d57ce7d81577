// Checks that every transport of the benchmark delivers every byte, and that the comparison detects
// a wrong one. Nothing is timed.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/transport_client.h"
#include "bench/peers/transport_server.h"
#include "gtest/gtest.h"
#include "wire/payload_message.h"

namespace eps {
namespace {

using Clients = std::vector<std::pair<std::string, std::unique_ptr<TransportClient>>>;

using Servers = std::vector<std::unique_ptr<TransportServer>>;

Servers BothServers(const TransportLoad& load) {
  Servers servers;
  for (const Settings settings : {Settings::kProduct, Settings::kPlain}) {
    auto server = TransportServer::Start(load, settings);
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) servers.push_back(std::move(*server));
  }
  return servers;
}

Clients AllClients(const TransportLoad& load, const Servers& servers) {
  Clients clients;
  const TransportServer::Ports ports = servers[0]->ports();
  clients.emplace_back("chunk stream", NewChunkStreamClient(load, ports.chunks));
  for (const bool in_place : {false, true}) {
    auto tcp = NewTcpClient(load, ports.tcp, in_place);
    EXPECT_TRUE(tcp.ok()) << tcp.status();
    if (tcp.ok()) clients.emplace_back("socket", std::move(*tcp));
  }
  for (const Settings settings : {Settings::kProduct, Settings::kPlain}) {
    const int port = servers[settings == Settings::kPlain ? 1 : 0]->ports().protobuf;
    clients.emplace_back("protobuf stream", NewProtobufStreamClient(load, port, settings));
    clients.emplace_back("protobuf calls", NewUnaryClient(load, port, settings));
  }
  return clients;
}

TEST(Transport, EveryTransportDeliversEveryByteRepeatedly) {
  const TransportLoad loads[] = {
      {1, 64},
      {1000, 64},  // more chunks than requests in flight, the last one short
      {2 * kMaxSliceBytes + 5, kMaxSliceBytes + 3},
      {5 * kMaxSliceBytes, 2 * kMaxSliceBytes},
  };
  for (const TransportLoad& load : loads) {
    const Servers servers = BothServers(load);
    ASSERT_EQ(servers.size(), 2u);
    for (const auto& [name, client] : AllClients(load, servers)) {
      for (int repetition = 0; repetition < 3; ++repetition) {
        std::vector<uint8_t> memory(load.total_bytes + 1, 0xa5);
        const absl::Status status = client->Fetch(memory.data());
        ASSERT_TRUE(status.ok()) << name << ": " << status;
        EXPECT_EQ(FirstDifference(memory.data(), load.total_bytes), load.total_bytes) << name;
        EXPECT_EQ(memory.back(), 0xa5) << name << " wrote past the load";
      }
    }
  }
}

TEST(Transport, AGoneServerIsAnError) {
  const TransportLoad load = {1000, 64};
  Servers servers = BothServers(load);
  ASSERT_EQ(servers.size(), 2u);
  const Clients clients = AllClients(load, servers);
  std::vector<uint8_t> memory(load.total_bytes);
  for (const auto& [name, client] : clients) EXPECT_TRUE(client->Fetch(memory.data()).ok()) << name;
  servers.clear();
  for (const auto& [name, client] : clients) {
    EXPECT_FALSE(client->Fetch(memory.data()).ok()) << name;
  }
}

TEST(Transport, TheComparisonDetectsEveryWrongByte) {
  std::vector<uint8_t> memory(3 * 4096 + 1003);  // larger than one compared block
  FillPattern(memory.data(), memory.size());
  EXPECT_EQ(FirstDifference(memory.data(), memory.size()), memory.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    memory[i] ^= 1;
    EXPECT_EQ(FirstDifference(memory.data(), memory.size()), i);
    memory[i] ^= 1;
  }
  // Swapped words, and a repeated word.
  std::vector<uint8_t> shifted(memory.begin() + 8, memory.end());
  EXPECT_EQ(FirstDifference(shifted.data(), shifted.size()), 0u);
}

}  // namespace
}  // namespace eps
