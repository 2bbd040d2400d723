//! Constraints between the hyper-parameters of a mixture of experts, for both kinds of file.

use super::error::ConfigError;
use super::keys::{EXPERTS, EXPERTS_USED, GROUPS, GROUPS_USED};
use super::reader::Reader;
use super::{GroupScore, MoeShape};

/// Checks the numbers of experts and groups against each other.
pub(super) fn check(reader: &Reader<'_>, moe: &MoeShape) -> Result<(), ConfigError> {
    let [experts_key, used_key, groups_key, groups_used_key] =
        [&EXPERTS, &EXPERTS_USED, &GROUPS, &GROUPS_USED].map(|key| reader.key(key));
    let (experts, used) = (moe.experts, moe.num_experts_per_tok);
    if used > experts {
        let expected = format!("at most {experts}, the {}", reader.name(experts_key));
        return Err(reader.wrong(used_key, used, expected));
    }
    let (groups, groups_used) = (moe.router.groups, moe.router.groups_used);
    if groups > experts || experts % groups != 0 {
        let expected = format!("a divisor of {experts}, the {}", reader.name(experts_key));
        return Err(reader.wrong(groups_key, groups, expected));
    }
    if groups_used == 0 || groups_used > groups {
        let expected = format!("from 1 to {groups}, the {}", reader.name(groups_key));
        return Err(reader.wrong(groups_used_key, groups_used, expected));
    }
    let size = experts / groups;
    if groups > 1 && moe.router.group_score == GroupScore::TopTwoSum && size < 2 {
        let expected = format!("at most {}: groups are ranked by their two best experts", experts / 2);
        return Err(reader.wrong(groups_key, groups, expected));
    }
    // Otherwise masked experts would be selected.
    if used > groups_used * size {
        let expected =
            format!("at most {}: {groups_used} groups of {size} experts are selected", groups_used * size);
        return Err(reader.wrong(used_key, used, expected));
    }
    Ok(())
}
