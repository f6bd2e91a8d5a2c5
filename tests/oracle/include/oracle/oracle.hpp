// SPDX-License-Identifier: Apache-2.0
/// \file
/// The manager of version 0.1: `pagedkv_oracle::KvCache`, `Sequence`, `Pin` and `Batch`.
#pragma once

#include <oracle/manage/kv_cache.hpp>
#include <oracle/manage/sequence.hpp>
#include <oracle/step/batch.hpp>
