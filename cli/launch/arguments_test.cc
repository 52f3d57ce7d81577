#include "cli/launch/arguments.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(OptionReaderTest, TakesDeclaredOptionsAndLeavesOthers) {
  bool json = false;
  std::string hardware;
  OptionReader reader;
  reader.Flag("--json", &json).Text("--hardware", &hardware);
  const auto rest = reader.Read({"--model", "m", "--json", "--hardware=a", "--json=1",
                                 "--hardware=b=c", "--training.steps=3", "--hardwares=d"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_TRUE(json);
  EXPECT_EQ(hardware, "b=c");
  EXPECT_EQ(*rest, (std::vector<std::string>{"--model", "m", "--json=1", "--training.steps=3",
                                             "--hardwares=d"}));
}

TEST(OptionReaderTest, ReturnsTheErrorOfAValue) {
  OptionReader reader;
  reader.Value("--width", [](absl::string_view) { return absl::InvalidArgumentError("no"); });
  EXPECT_EQ(reader.Read({"--width=3"}).status().message(), "no");
}

TEST(OptionReaderTest, TakesAValueAfterASpace) {
  bool json = false;
  std::string hardware;
  OptionReader reader;
  reader.Flag("--json", &json).Text("--hardware", &hardware);
  const auto rest = reader.Read({"--hardware", "h200_node", "--json", "last"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(hardware, "h200_node");
  EXPECT_TRUE(json);
  EXPECT_EQ(*rest, std::vector<std::string>{"last"});
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--hardware"}, {"--hardware", "--json"}}) {
    EXPECT_EQ(reader.Read(arguments).status().message(),
              "--hardware: expected a value, found none; write --hardware=VALUE");
  }
}

TEST(UnknownCommandTest, NamesTheNearest) {
  const absl::Status status = UnknownCommand("serv", {"train", "serve"});
  EXPECT_EQ(status.message(),
            "unknown command or option serv, known are train, serve; did you mean serve?");
}

}  // namespace
}  // namespace eps
