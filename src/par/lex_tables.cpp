// SPDX-License-Identifier: Apache-2.0
// The tables of lexers that are there.
#include <string>
#include <utility>

#include "gpufs/mount.hpp"
#include "gpufs/par/lex_table.hpp"

namespace gpufs::par {
namespace {

// Hillis and Steele's nine states by their names (CACM 1986, "Parsing a regular language"), extended by ( ) , and ;.
constexpr std::string_view paper = R"(kinds error word operator string
start N
state N -
  A-Z a-z          -> begin A
  + - * ( ) , ; =  -> begin *
  < >              -> begin <
  "                -> begin Q
  \s \n            -> N
state A word
  A-Z a-z          -> Z
state Z word
  A-Z a-z          -> Z
state * operator
state < operator
  =                -> =
state = operator
state Q error
  "                -> E
  else             -> S
state S error
  "                -> E
  else             -> S
state E string
  "                -> S
)";

// RFC 8259. A string's \uXXXX are not looked at, nor where in a number its dots and signs are.
constexpr std::string_view json = R"(kinds error { } [ ] : , string number word
start blank
state blank -
  \s \t \n \r          -> blank
  {                    -> begin {
  }                    -> begin }
  [                    -> begin [
  ]                    -> begin ]
  :                    -> begin :
  ,                    -> begin ,
  "                    -> begin string
  0-9                  -> begin number
  -                    -> begin sign
  A-Z a-z _            -> begin word
state { {
state } }
state [ [
state ] ]
state : :
state , ,
state string error
  "                    -> string-end
  \\                   -> escape
  \x00-\x1f            as blank
  else                 -> string
state escape error
  \x00-\x1f            as blank
  else                 -> string
state string-end string
state number number
  0-9                  -> number
  . e E + -            -> sign
state sign error
  0-9                  -> number
  . e E + -            -> sign
state word word
  A-Z a-z 0-9 _        -> word
)";

// RFC 4180, with any of LF, CR LF and CR at a line's end. A field without bytes is no token.
constexpr std::string_view csv = R"(kinds error field quoted , newline
start begin
state begin -
  ,                    -> begin ,
  \n                   -> begin newline
  \r                   -> begin return
  "                    -> begin quoted
  else                 -> begin field
state field field
  , \n \r              as begin
  else                 -> field
state quoted error
  "                    -> quote
  else                 -> quoted
state quote quoted
  "                    -> quoted
  , \n \r              as begin
  else                 -> broken
state broken error
  , \n \r              as begin
  else                 -> broken
state , ,
state newline newline
state return newline
  \n                   -> newline
  else                 as begin
)";

constexpr std::string_view c = R"(kinds error name number string character punctuation comment
start blank
state blank -
  \s \t \n \v \f \r        -> blank
  A-Z a-z _ $ \x80-\xff    -> begin name
  0-9                      -> begin number
  .                        -> begin dot
  "                        -> begin string
  '                        -> begin character
  /                        -> begin slash
  ( ) [ ] { } ; , ? ~      -> begin one
  = * % ^ !                -> begin equal
  +                        -> begin plus
  -                        -> begin minus
  &                        -> begin and
  |                        -> begin or
  <                        -> begin less
  >                        -> begin more
  :                        -> begin colon
  #                        -> begin hash
state name name
  A-Z a-z 0-9 _ $ \x80-\xff    -> name
state number number
  A-D F-O Q-Z a-d f-o q-z 0-9 _ . $ \x80-\xff    -> number
  E P e p                                          -> exponent
state exponent number
  A-D F-O Q-Z a-d f-o q-z 0-9 _ . $ \x80-\xff + -    -> number
  E P e p                                              -> exponent
state dot punctuation
  0-9    -> number
  .      -> dots
state dots error
  .      -> one
state string error
  "      -> string-end
  \\     -> string-escape
  \n     as blank
  else   -> string
state string-escape error
  \r     -> string-return
  else   -> string
state string-return error
  \n     -> string
  else   as string
state string-end string
state character error
  '      -> character-end
  \\     -> character-escape
  \n     as blank
  else   -> character
state character-escape error
  \r     -> character-return
  else   -> character
state character-return error
  \n     -> character
  else   as character
state character-end character
state slash punctuation
  /      -> line
  *      -> block
  =      -> one
state line comment
  \n     as blank
  \\     -> line-escape
  else   -> line
state line-escape comment
  \\ \r  -> line-escape
  else   -> line
state block error
  *      -> star
  else   -> block
state star error
  /      -> block-end
  *      -> star
  else   -> block
state block-end comment
state one punctuation
state equal punctuation
  =      -> one
state plus punctuation
  + =    -> one
state minus punctuation
  - = >  -> one
state and punctuation
  & =    -> one
state or punctuation
  | =    -> one
state less punctuation
  <      -> equal
  =      -> one
state more punctuation
  >      -> equal
  =      -> one
state colon punctuation
  :      -> one
state hash punctuation
  #      -> one
)";

constexpr std::pair<std::string_view, std::string_view> tables[] = {{"c", c}, {"csv", csv}, {"json", json}, {"paper", paper}};

}  // namespace

std::optional<std::string_view> lex_table::text_of(std::string_view name) {
  for (const auto& [known, text] : tables) {
    if (known == name) return text;
  }
  return {};
}
std::vector<std::string_view> lex_table::names() {
  std::vector<std::string_view> all;
  for (const auto& table : tables) all.push_back(table.first);
  return all;
}
lex_table lex_table::named(std::string_view name) {
  if (const auto text = text_of(name)) return parse(*text, "table " + std::string(name));
  std::string all;
  for (const std::string_view known : names()) all += (all.empty() ? "" : ", ") + std::string(known);
  throw error("there is no table '" + std::string(name) + "'; there are " + all);
}

}  // namespace gpufs::par
