//! Decodes tile instructions: the three-byte VEX form, map 0F38, opcodes 49, 4B, 5C and 5E.

use crate::tiles::ByteSigns;

/// A tile instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    LoadConfig(MemoryOperand),
    StoreConfig(MemoryOperand),
    /// Removes the configuration and zeroes all tiles.
    Release,
    /// Zeroes a tile.
    Zero(usize),
    /// Loads a tile from rows in memory. The index register holds their stride.
    Load(usize, MemoryOperand),
    /// Stores a tile to rows in memory, likewise.
    Store(usize, MemoryOperand),
    DotBf16 {
        sum: usize,
        left: usize,
        right: usize,
    },
    /// The product of bytes instead of bf16 pairs.
    DotBytes {
        sum: usize,
        left: usize,
        right: usize,
        signs: ByteSigns,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryOperand {
    pub base: AddressBase,
    /// Register, and the scale as a power of two.
    pub index: Option<(u8, u8)>,
    pub displacement: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressBase {
    Register(u8),
    NextInstruction,
    Nothing,
}

/// The first byte of every form.
pub(crate) const VEX: u8 = 0xc4;

/// Length of the shortest form in bytes: prefix, opcode and ModRM.
pub(crate) const MIN_LENGTH: usize = 5;

/// Length of the longest form in bytes: prefix, opcode, ModRM, SIB and displacement.
pub(crate) const MAX_LENGTH: usize = 10;

/// Mandatory prefixes, by the value of VEX.pp.
const NONE: u8 = 0;
const P66: u8 = 1;
const F3: u8 = 2;
const F2: u8 = 3;

/// The tile instruction at the beginning of `bytes` and its length. `None` for other instructions.
pub(crate) fn decode(bytes: &[u8; MAX_LENGTH]) -> Option<(Instruction, usize)> {
    let &[VEX, second, third, opcode, modrm, ..] = bytes else { return None };
    // All tile instructions are in map 0F38 with W = 0 and L = 0.
    if second & 0x1f != 2 || third & 0x84 != 0 {
        return None;
    }
    // VEX.vvvv, R, X and B are stored inverted.
    let (prefix, extra) = (third & 3, usize::from(!third >> 3 & 15));
    let extended = |bit: u8, number: u8| number | (!second >> bit & 1) << 3;
    let (mode, reg, rm) = (modrm >> 6, usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
    let registers = mode == 3;
    let memory = || address(&bytes[5..], mode, modrm & 7, extended);
    // Forms without a memory operand have neither SIB nor displacement.
    let without_memory = |instruction| Some((instruction, MIN_LENGTH));
    match (opcode, prefix, registers) {
        (0x49, NONE, true) if modrm == 0xc0 => without_memory(Instruction::Release),
        (0x49, F2, true) if rm == 0 => without_memory(Instruction::Zero(reg)),
        (0x49, NONE, false) if reg == 0 => memory().map(|(at, len)| (Instruction::LoadConfig(at), len)),
        (0x49, P66, false) if reg == 0 => memory().map(|(at, len)| (Instruction::StoreConfig(at), len)),
        // The prefix 66 is TILELOADDT1, a load with a hint that the data are not reused. Loads and
        // stores need a SIB byte (rm = 4), whose index register holds the stride.
        (0x4b, F2 | P66, false) if rm == 4 => memory().map(|(at, len)| (Instruction::Load(reg, at), len)),
        (0x4b, F3, false) if rm == 4 => memory().map(|(at, len)| (Instruction::Store(reg, at), len)),
        (0x5c, F3, true) => without_memory(Instruction::DotBf16 { sum: reg, left: rm, right: extra }),
        (0x5e, _, true) => {
            // TDPBSSD is F2, TDPBSUD is F3, TDPBUSD is 66 and TDPBUUD has no prefix.
            let signs = ByteSigns { left: matches!(prefix, F2 | F3), right: matches!(prefix, F2 | P66) };
            without_memory(Instruction::DotBytes { sum: reg, left: rm, right: extra, signs })
        }
        _ => None,
    }
}

/// A memory operand and the length of its instruction. `bytes` follow ModRM.
fn address(
    bytes: &[u8],
    mode: u8,
    rm: u8,
    extended: impl Fn(u8, u8) -> u8,
) -> Option<(MemoryOperand, usize)> {
    let (base, index, rest) = if rm == 4 {
        let sib = bytes[0];
        let (base, index) = (sib & 7, extended(6, sib >> 3 & 7));
        // Special cases of the encoding: mode 0 with base 5 in SIB means no base, index 4 means no
        // index, and mode 0 with rm = 5 and no SIB is relative to RIP. The first and the last have
        // a displacement of 32 bits.
        let base = if base == 5 && mode == 0 {
            AddressBase::Nothing
        } else {
            AddressBase::Register(extended(5, base))
        };
        (base, (index != 4).then_some((index, sib >> 6)), &bytes[1..])
    } else if rm == 5 && mode == 0 {
        (AddressBase::NextInstruction, None, bytes)
    } else {
        (AddressBase::Register(extended(5, rm)), None, bytes)
    };
    let wide = mode == 2 || (mode == 0 && !matches!(base, AddressBase::Register(_)));
    let (displacement, taken) = match mode {
        _ if wide => (i32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]), 4),
        1 => (i32::from(rest[0] as i8), 1),
        _ => (0, 0),
    };
    let length = 5 + usize::from(rm == 4) + taken;
    Some((MemoryOperand { base, index, displacement }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Option<(Instruction, usize)> {
        let mut padded = [0; MAX_LENGTH];
        padded[..bytes.len()].copy_from_slice(bytes);
        decode(&padded)
    }

    /// The encodings of GNU as and of LLVM's assembler.
    #[test]
    fn every_instruction_is_decoded() {
        let at = |base, index, displacement| MemoryOperand {
            base: AddressBase::Register(base),
            index,
            displacement,
        };
        assert_eq!(of(&[0xc4, 0xe2, 0x78, 0x49, 0xc0]), Some((Instruction::Release, 5)));
        assert_eq!(of(&[0xc4, 0xe2, 0x7b, 0x49, 0xf8]), Some((Instruction::Zero(7), 5)));
        // ldtilecfg [rdi]; ldtilecfg [rip + 16]; sttilecfg [r9 - 1]
        assert_eq!(of(&[0xc4, 0xe2, 0x78, 0x49, 0x07]), Some((Instruction::LoadConfig(at(7, None, 0)), 5)));
        let behind = MemoryOperand { base: AddressBase::NextInstruction, index: None, displacement: 16 };
        assert_eq!(
            of(&[0xc4, 0xe2, 0x78, 0x49, 0x05, 16, 0, 0, 0]),
            Some((Instruction::LoadConfig(behind), 9))
        );
        assert_eq!(
            of(&[0xc4, 0xc2, 0x79, 0x49, 0x41, 0xff]),
            Some((Instruction::StoreConfig(at(9, None, -1)), 6))
        );
        // tileloadd tmm6, [r12 + 2*r13 + 1024]; tilestored [rax + rcx], tmm1
        assert_eq!(
            of(&[0xc4, 0x82, 0x7b, 0x4b, 0xb4, 0x6c, 0, 4, 0, 0]),
            Some((Instruction::Load(6, at(12, Some((13, 1)), 1024)), 10))
        );
        assert_eq!(
            of(&[0xc4, 0xe2, 0x7a, 0x4b, 0x0c, 0x08]),
            Some((Instruction::Store(1, at(0, Some((1, 0)), 0)), 6))
        );
        // tdpbf16ps tmm0, tmm4, tmm6; tdpbusd tmm1, tmm2, tmm3
        let dot = Instruction::DotBf16 { sum: 0, left: 4, right: 6 };
        assert_eq!(of(&[0xc4, 0xe2, 0x4a, 0x5c, 0xc4]), Some((dot, 5)));
        let signs = ByteSigns { left: false, right: true };
        let dot = Instruction::DotBytes { sum: 1, left: 2, right: 3, signs };
        assert_eq!(of(&[0xc4, 0xe2, 0x61, 0x5e, 0xca]), Some((dot, 5)));
    }

    #[test]
    fn other_instructions_are_not_decoded() {
        // vpshufb, ud2, and tileloadd without a SIB byte.
        for bytes in [&[0xc4, 0xe2, 0x61, 0x00, 0xca][..], &[0x0f, 0x0b], &[0xc4, 0xe2, 0x7b, 0x4b, 0x00]] {
            assert_eq!(of(bytes), None);
        }
    }
}
