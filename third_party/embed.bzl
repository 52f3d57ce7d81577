"""embed_text: a text file as a C++ constant."""

def embed_text(name, src, symbol, header):
    """Generates `header`, which declares eps::<symbol>, an array of char with the content of `src`.

    The text becomes a raw string, so it must not contain the closing delimiter )EMBED".

    Args:
      name: name of the cc_library.
      src: the text file.
      symbol: name of the constant in namespace eps.
      header: file name of the generated header.
    """
    native.genrule(
        name = name + "_gen",
        srcs = [src],
        outs = [header],
        cmd = "{ echo '#pragma once'; echo 'namespace eps {'; " +
              "printf 'inline constexpr char %s[] = R\"EMBED(' " + symbol + "; cat $<; " +
              "echo ')EMBED\";'; echo '}'; } > $@",
    )
    native.cc_library(
        name = name,
        hdrs = [header],
    )
