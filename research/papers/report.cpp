// SPDX-License-Identifier: Apache-2.0
#include "research/papers/report.hpp"

#include <cstdio>

namespace gpufs::papers {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  }
  return out.append("\"");
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string to_json(const cell& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  if (const auto* real = std::get_if<double>(&value)) return *real == *real ? number(*real) : "null";
  return std::to_string(std::get<std::uint64_t>(value));
}

std::string to_text(const cell& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return to_json(value);
}

template <class Values, class Each>
std::string list(const Values& values, const char* between, Each each) {
  std::string out = "[";
  for (const auto& value : values) {
    if (out.size() > 1) out.append(",");
    out.append(between).append(each(value));
  }
  return out.append("]");
}

std::string strings(const std::vector<std::string>& values) { return list(values, " ", quoted); }
std::string rows(const std::vector<row>& values) {
  return list(values, "\n    ", [](const row& one) { return list(one, " ", [](const cell& c) { return to_json(c); }); });
}

void append_rows(std::string& out, const std::vector<std::string>& columns, const std::vector<row>& all) {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    widths.push_back(columns[i].size());
    for (const row& one : all) widths[i] = std::max(widths[i], to_text(one[i]).size());
  }
  const auto line = [&](auto text_of) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      std::string text = text_of(i);
      out.append("  ").append(text).append(widths[i] - text.size(), ' ');
    }
    out.append("\n");
  };
  line([&](std::size_t i) { return columns[i]; });
  for (const row& one : all) line([&](std::size_t i) { return to_text(one[i]); });
}

}  // namespace

std::string to_json(const report& r, const provenance& from) {
  std::string out = "{\n";
  const auto field = [&out](const char* name, const std::string& value) {
    if (out.size() > 2) out.append(",\n");
    out.append("  \"").append(name).append("\": ").append(value);
  };
  field("name", quoted(r.name));
  field("title", quoted(r.title));
  field("machine", quoted(from.machine));
  field("driver", quoted(from.driver));
  field("commit", quoted(from.commit));
  field("command", quoted(from.command));
  field("verified", r.verified ? "true" : "false");
  if (!r.bound.empty()) {
    field("figure", number(r.figure));
    field("bound", quoted(r.bound));
    field("measured", quoted(r.measured));
    field("ceiling", quoted(r.ceiling));
    field("spread", quoted(r.spread));
  }
  field("columns", strings(r.columns));
  field("rows", rows(r.rows));
  field("paper", "{\"columns\": " + strings(r.paper_columns) + ", \"rows\": " + rows(r.paper) + "}");
  field("notes", strings(r.notes));
  return out.append("\n}\n");
}

std::string to_text(const report& r) {
  std::string out = "\n" + r.title + (r.verified ? "" : "  ** NOT VERIFIED: other tiles were chosen **") + "\n";
  append_rows(out, r.columns, r.rows);
  if (!r.paper.empty()) {
    out.append(" the paper:\n");
    append_rows(out, r.paper_columns, r.paper);
  }
  if (!r.bound.empty()) out.append(" figure " + number(r.figure) + ", wanted " + r.bound + "\n");
  return out;
}

}  // namespace gpufs::papers
