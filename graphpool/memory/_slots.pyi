class Slots:
    nbytes: int
    alignment: int
