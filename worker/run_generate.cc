#include "worker/run_generate.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/models/model_family.h"
#include "base/machine/python_tools.h"
#include "base/status_macros.h"
#include "worker/data/tokenizer_digest.h"
#include "worker/models/generate/generator.h"
#include "worker/tokenizer_process.h"

namespace eps {
namespace {

// Returns the length of the well-formed sequence at the start of `s`, or 0 if there is none; then
// *bad is the length of the part to replace.
size_t SequenceLength(absl::string_view s, size_t* bad) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  *bad = 1;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Some leads restrict the second byte: no overlong forms, surrogates, or values above U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    const bool fits =
        i < s.size() && byte(i) >= (i == 1 ? low : 0x80) && byte(i) <= (i == 1 ? high : 0xBF);
    if (!fits) {
      *bad = i;
      return 0;
    }
  }
  return length;
}

// Starts the tokenizer of a model's folder.
absl::StatusOr<std::unique_ptr<TokenizerProcess>> StartTokenizer(const std::string& folder) {
  EPS_ASSIGN_OR_RETURN(const std::string digest, TokenizerDigest(folder));
  if (digest.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder,
                     " (--model) has no tokenizer: copy its files there (tokenizer.json or "
                     "others), or give the prompt as --prompt-ids=1,2,3"));
  }
  EPS_ASSIGN_OR_RETURN(const PythonTools tools, FindPythonTools(PythonPlaces::Current()));
  return TokenizerProcess::Start(tools, folder);
}

}  // namespace

std::string ReplaceInvalidUtf8(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    size_t bad = 0;
    const size_t good = SequenceLength(bytes, &bad);
    if (good > 0) {
      text.append(bytes.data(), good);
    } else {
      text.append("\xEF\xBF\xBD");
    }
    bytes.remove_prefix(good > 0 ? good : bad);
  }
  return text;
}

absl::StatusOr<std::string> RunGenerate(const GenerateOptions& options) {
  EPS_ASSIGN_OR_RETURN(const auto generator, Generator::Load(options.model_dir, options.runtime));
  const bool bytes = generator->vocabulary() == kByteVocabulary && !options.chat;
  std::unique_ptr<TokenizerProcess> tokenizer;
  std::vector<int32_t> tokens = options.prompt_ids;
  if (tokens.empty() && bytes) {
    for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) tokens.push_back('\n');  // an empty prompt starts at a line's beginning
  } else if (tokens.empty()) {
    EPS_ASSIGN_OR_RETURN(tokenizer, StartTokenizer(generator->folder()));
    EPS_ASSIGN_OR_RETURN(tokens, options.chat ? tokenizer->EncodeChat(options.prompt)
                                              : tokenizer->Encode(options.prompt));
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<int32_t> continuation,
                       generator->Continue(tokens, options.tokens, options.sampling));
  if (options.chat) tokens.clear();  // only the answer is of interest
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  if (tokenizer != nullptr) return tokenizer->Decode(tokens);
  if (!bytes) return absl::StrJoin(tokens, ",");
  return ReplaceInvalidUtf8(std::string(tokens.begin(), tokens.end()));
}

}  // namespace eps
