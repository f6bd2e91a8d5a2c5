// SPDX-License-Identifier: Apache-2.0
namespace pagedkv::testing {
int run_catch(int argc, char** argv);
}  // namespace pagedkv::testing

int main(int argc, char** argv) { return pagedkv::testing::run_catch(argc, argv); }
