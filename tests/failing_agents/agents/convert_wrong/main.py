from converter.app import convert

if __name__ == "__main__":
    print(convert("How far is a marathon of 26.2 miles?"))
