// SPDX-License-Identifier: Apache-2.0
/// \file
/// The whole host side.
///
///     token ids -> block hash -> prefix index -> block pool -> block table
///               -> slot mapping -> (your kernels write K and V, and read them)
#pragma once

#include <pagedkv/config.hpp>
#include <pagedkv/error.hpp>
#include <pagedkv/fwd.hpp>
#include <pagedkv/manage/kv_cache.hpp>
#include <pagedkv/manage/observer.hpp>
#include <pagedkv/manage/prompt_key.hpp>
#include <pagedkv/manage/sequence.hpp>
#include <pagedkv/manage/stats.hpp>
#include <pagedkv/model/capacity_plan.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/model/recommend_format.hpp>
#include <pagedkv/result.hpp>
#include <pagedkv/step/batch.hpp>
#include <pagedkv/step/batch_arrays.hpp>
#include <pagedkv/step/step_planner.hpp>
#include <pagedkv/types.hpp>
#include <pagedkv/version.hpp>
