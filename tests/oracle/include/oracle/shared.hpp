// SPDX-License-Identifier: Apache-2.0
/// \file
/// The oracle's namespace, and the few plain types that it has in common with the library, so that
/// what both answer can be compared with ==. Nothing else of the library is included.
#pragma once

#include <pagedkv/error.hpp>
#include <pagedkv/result.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>

#define PAGEDKV_ORACLE_BEGIN namespace pagedkv_oracle {
#define PAGEDKV_ORACLE_END }

PAGEDKV_ORACLE_BEGIN

using pagedkv::BlockCopy;
using pagedkv::BlockId;
using pagedkv::blocks_for;
using pagedkv::Errc;
using pagedkv::Error;
using pagedkv::GroupId;
using pagedkv::padding_slot;
using pagedkv::raise;
using pagedkv::Result;
using pagedkv::SequenceId;
using pagedkv::Slot;
using pagedkv::Tick;
using pagedkv::TokenId;
using pagedkv::TokenRange;
using pagedkv::Unexpected;
using pagedkv::unknown_token;

PAGEDKV_ORACLE_END
