//! Plain loops, compiled for each instruction set.

/// Makes a function that runs a plain one as compiled for the instruction set at hand. The plain
/// one's loops are over indices: closures of iterators would not be compiled for the set.
macro_rules! compiled {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? = $plain:ident) => {
        $(#[$doc])*
        fn $name(isa: $crate::detect::Isa, $($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    $plain($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    $plain($($arg),*)
                }
                match isa.lowered() {
                    $crate::detect::Isa::Avx512 | $crate::detect::Isa::Avx512Vnni => {
                        // SAFETY: `lowered` leaves nothing that the processor does not have.
                        return unsafe { avx512($($arg),*) };
                    }
                    // SAFETY: as above.
                    $crate::detect::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::detect::Isa::Reference => {}
                }
            }
            let _ = isa;
            $plain($($arg),*)
        }
    };
}

pub(crate) use compiled;
