// Prints the scores of EPS's GPT-2, for comparison with other programs: for each position of a
// sequence, the scores of the whole vocabulary, as raw floats on standard output.
//
// usage: print_logits FOLDER 1,2,3     FOLDER holds config.json and model.safetensors

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "worker/models/generate/generator.h"
#include "worker/relay/stage_program.h"

namespace eps {
namespace {

absl::Status Print(const std::string& folder, const std::string& ids) {
  RuntimeOptions options;
  options.device = "cpu";
  options.threads = 1;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Generator> generator,
                       Generator::Load(folder, options));
  std::vector<int32_t> tokens;
  for (const absl::string_view word : absl::StrSplit(ids, ',')) {
    tokens.emplace_back();
    if (!absl::SimpleAtoi(word, &tokens.back())) {
      return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is not a token id"));
    }
    EPS_ASSIGN_OR_RETURN(const std::vector<float> scores, generator->Scores(tokens));
    if (std::fwrite(scores.data(), sizeof(float), scores.size(), stdout) != scores.size()) {
      return IoError("cannot write to standard output");
    }
  }
  return std::fflush(stdout) == 0 ? absl::OkStatus() : IoError("cannot write to standard output");
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: print_logits FOLDER 1,2,3" << std::endl;
    return static_cast<int>(eps::ExitCode::kUsage);
  }
  const absl::Status status = eps::Print(argv[1], argv[2]);
  if (!status.ok()) std::cerr << "print_logits: " << status.message() << std::endl;
  return static_cast<int>(eps::ExitCodeOf(status));
}
