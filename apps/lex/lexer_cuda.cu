// SPDX-License-Identifier: Apache-2.0
#include "apps/lex/lexer_device.hpp"

namespace gpufs::apps::lex {

std::unique_ptr<lexer> make_lexer_cuda(const std::string& path, const par::lex_table& table, const lexer_options& options) {
  return make_lexer(path, table, options);
}

}  // namespace gpufs::apps::lex
